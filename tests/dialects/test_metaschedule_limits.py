"""What is not worth a build: too much code, and tiles that no cache holds."""

import math

import numpy as np
import pytest
from metaschedule_models import small_network

from tunery.dialects import get_dialect
from tunery.runtime.services import ProposerHost

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    dialect = get_dialect("metaschedule")
    tasks = dialect.extract(small_network(tmp_path_factory.mktemp("net")), dialect.resolve_target("native", 1))
    return next(task for task in tasks if task.workload.kind == "matmul")


def test_what_unrolls_to_too_much_is_refused_with_its_reason_and_another_takes_its_place(task, monkeypatch):
    from tunery.dialects.metaschedule.search import limits
    from tunery.dialects.metaschedule.search.limits import code_size
    from tunery.dialects.metaschedule.variants.program import scheduled_module

    dialect = get_dialect("metaschedule")
    sizes = sorted(code_size(scheduled_module(task, c)) for c in dialect.open(task, [], None, 0).propose(24))
    limit = sizes[18]
    assert limit < sizes[-1]
    monkeypatch.setattr(limits, "LARGEST", limit)
    host = ProposerHost("metaschedule")
    host.open(task, (), None, 0)
    first, second = host.propose(task.key, 24, ()), host.propose(task.key, 24, ())
    for proposal in (first, second):
        assert {len(proposal.features), len(proposal.scores), len(proposal.rejected)} == {len(proposal.candidates)}
        assert proposal.rejected.count(None) > 12
        for candidate, row, why in zip(proposal.candidates, proposal.features, proposal.rejected, strict=True):
            size = code_size(scheduled_module(task, candidate))
            assert (size > limit) == bool(why)
            assert bool(row) != bool(why)
            if why:
                assert why == f"unrolls to {size:.0f} vector stores, more than {limit}"
    assert any(first.rejected)
    keys = [candidate.key for proposal in (first, second) for candidate in proposal.candidates]
    assert len(keys) == len(set(keys)), "one was refused twice"


def test_tiles_that_no_cache_holds_are_refused_by_the_features_at_hand(task, monkeypatch):
    from tunery.dialects.metaschedule.search import limits
    from tunery.dialects.metaschedule.variants.program import scheduled_module

    host = ProposerHost("metaschedule")
    host.open(task, (), None, 0)
    assert not any(host.propose(task.key, 16, ()).rejected), "the tiles of a small layer fit in every cache"
    monkeypatch.setattr(limits, "cache_share", lambda _: 63)
    proposal = host.propose(task.key, 32, ())
    refused = [c for c, why in zip(proposal.candidates, proposal.rejected, strict=True) if why]
    assert 0 < len(refused) < len(proposal.candidates)
    for candidate, why in zip(proposal.candidates, proposal.rejected, strict=True):
        assert not why or "sblock_alloc_buffer" in scheduled_module(task, candidate).script()


@pytest.mark.parametrize(
    ("size", "anew", "cache", "refused"),
    [
        (1 << 21, 4, 1 << 20, True),
        (1 << 21, 4, 1 << 22, False),
        (1 << 21, 1, 1 << 20, False),  # one buffer for all of the output
        (1 << 21, 4, 0, False),  # a machine that does not say
    ],
)
def test_a_tile_is_to_fit_a_threads_share_of_a_cache(size, anew, cache, refused):
    from tunery.dialects.metaschedule.features.features import WIDTH
    from tunery.dialects.metaschedule.search.limits import beyond_cache

    row = np.zeros(WIDTH, np.float32)
    row[157], row[159] = math.log2(size + 1), math.log2(anew + 1)
    assert bool(beyond_cache(row, cache)) is refused
    assert not beyond_cache(np.full(WIDTH, np.nan, np.float32), cache)
    assert not beyond_cache(row[:8], cache)


def test_caches_are_shared_by_the_threads_of_their_cores_only(tmp_path):
    from tunery.dialects.metaschedule.search.limits import cache_share

    for number, (kind, size, cores) in enumerate(
        [("Data", "48K", "0"), ("Instruction", "64M", "0"), ("Unified", "2M", "0"), ("Unified", "32M", "0-7,16-23")]
    ):
        index = tmp_path / f"index{number}"
        index.mkdir()
        for name, text in (("type", kind), ("size", size), ("shared_cpu_list", cores)):
            (index / name).write_text(f"{text}\n")
    assert [cache_share(threads, tmp_path) >> 20 for threads in (1, 2, 16, 64)] == [32, 16, 2, 2]
    (tmp_path / "index3" / "size").unlink()
    assert cache_share(4, tmp_path) == 2 << 20, "what cannot be read does not count"
    assert cache_share(4, tmp_path / "nowhere") == 0
