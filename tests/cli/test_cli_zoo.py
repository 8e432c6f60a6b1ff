"""`tunery zoo extract`: real networks of several kinds, counted; wrong requests end at once."""

import pytest
from cli_tools import Run

SMALL = ("mlp-mnist", "ds-cnn", "bert-tiny", "espcn-x3")


@pytest.mark.tvm
@pytest.mark.usefixtures("worker_processes")  # the compiler's threads print after the command's end
def test_networks_of_several_kinds_are_extracted_and_kept(run: Run) -> None:
    args = ("zoo", "extract", *SMALL, "--batch", "1,2", "--threads", "1", "--json")
    found = run(*args).data
    assert found["failures"] == []
    assert found["networks"] == len(SMALL)
    assert {one["model"] for one in found["extracted"]} == {f"zoo:{n}{at}" for n in SMALL for at in ("", "@2")}
    kinds = {row["kind"]: row for row in found["kinds"]}
    assert {"conv2d", "depthwise", "matmul"} <= kinds.keys()
    assert found["tasks"] == sum(one["tasks"] for one in found["extracted"]) >= found["unique"] > 30
    assert sum(row["unique"] for row in kinds.values()) == found["unique"]
    again = run(*args).data
    assert all(one["cached"] for one in again["extracted"])
    assert again["kinds"] == found["kinds"]
    table = run(*args[:-1])
    assert table.code == 0
    assert f"the store knew {2 * len(SMALL)} of {2 * len(SMALL)}" in table.out
    assert "conv2d" in table.out


@pytest.mark.parametrize("batch", ["", "0", "1,", "x", "1.5", "-8", "99999999"])
def test_a_batch_that_is_none(run: Run, batch: str) -> None:
    answer = run("zoo", "extract", "mlp-mnist", f"--batch={batch}")
    assert answer.code == 2
    assert "--batch 1,8" in answer.err


def test_an_unknown_network_suggests_near_ones(run: Run) -> None:
    answer = run("zoo", "extract", "resnet18", "mobilenet_v4", "--json")
    assert answer.code == 2
    assert "did you mean mobilenet_v" in answer.data["error"]


@pytest.mark.jobs
def test_an_unknown_target(run: Run) -> None:
    answer = run("zoo", "extract", "mlp-mnist", "--target", "quantum")
    assert answer.code == 2
    assert "quantum" in answer.err
