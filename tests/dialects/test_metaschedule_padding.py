"""Padding never becomes masked loads from outside an array, whose cost depends on what lies beside it in memory."""

import re
from dataclasses import replace

import pytest
from metaschedule_models import convolution_network

from tunery.dialects import get_dialect

pytestmark = pytest.mark.tvm


def masked_loads(task, candidates) -> int:
    """Count them in the assembly for a processor that has them, whichever machine this is."""
    from tunery.dialects.metaschedule._tvm import open_target, tvm
    from tunery.dialects.metaschedule.variants.program import scheduled_module

    target = open_target({**task.target.config, "mcpu": "znver4"})
    found = 0
    for candidate in candidates:
        with tvm.transform.PassContext(opt_level=3):
            library = tvm.tirx.build(scheduled_module(task, candidate), target=target)
        found += len(re.findall(r"^\s*vmov\w+\s+[^\n]*\(%\w+[^\n]*\{z\}", library.inspect_source("asm"), re.MULTILINE))
    return found


def test_padding_is_tested_outside_the_loop_over_channels(tmp_path):
    dialect = get_dialect("metaschedule")
    network = convolution_network(tmp_path, channels=(144, 144), groups=144, size=14)
    task = next(
        task for task in dialect.extract(network, dialect.resolve_target("native", 1))
        if task.workload.kind == "depthwise"
    )  # fmt: skip
    candidates = dialect.open(task, [], None, 0).propose(12)
    config = {name: value for name, value in task.target.config.items() if name != "unswitch"}
    careless = replace(task, target=replace(task.target, config=config))

    assert masked_loads(careless, candidates) > 0, "otherwise this test sees nothing"
    assert masked_loads(task, candidates) == 0
