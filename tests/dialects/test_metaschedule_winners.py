"""Winners of like tasks: kept with their extents, fitted to others, and tried before anything else."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metaschedule_models import convolution_network

from tunery.costmodels import BoostedModel, Dataset, with_task
from tunery.costmodels.registry import shipped as shipped_model
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.codegen.calibration import _matmul
from tunery.dialects.metaschedule.search import suggestions as foresight
from tunery.dialects.metaschedule.search.genomes import Gene, Genome
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
from tunery.dialects.metaschedule.search.winners import (
    TaskSignature,
    Winner,
    Winners,
    dumps,
    fitted,
    fitted_tile,
    loads,
    place_of,
    shipped,
    winners_of,
)
from tunery.dialects.metaschedule.variants.program import space_of, tvm_target
from tunery.dialects.metaschedule.variants.variant import GENERIC, read_body
from tunery.domain import Target, Task, TensorSpec, Workload

pytestmark = pytest.mark.tvm

_DESIGNS = [(Gene("SamplePerfectTile", 2, 64, 64),)]


@given(st.lists(st.integers(1, 64), min_size=2, max_size=4), st.integers(1, 4096), st.integers(1, 64))
def test_a_fitted_tile_is_a_tile_of_the_extent(factors: list[int], extent: int, innermost: int) -> None:
    tile = fitted_tile(factors, extent, innermost)
    assert math.prod(tile) == extent
    assert len(tile) == len(factors)
    assert tile[-1] <= innermost


@given(st.lists(st.integers(1, 32), min_size=2, max_size=4))
def test_a_tile_that_fits_stays(factors: list[int]) -> None:
    assert fitted_tile(factors, math.prod(factors), 64) == tuple(factors)


def test_whole_vectors_stay_whole() -> None:
    assert fitted_tile((1, 1, 1, 64), 144, 64)[-1] == 16
    assert fitted_tile((1, 1, 1, 16), 27, 64)[-1] == 27, "where none divides, what is near must do"


def at(*extents: int, structure: str = "s") -> TaskSignature:
    return TaskSignature(structure, extents)


def won(extent: int, inner: int, *, variant: str = GENERIC, behind: float = 1.0, structure: str = "s") -> Winner:
    genome = Genome(0, ((extent // inner, inner),))
    return Winner(at(extent), variant, at(extent, structure=structure), behind, (genome,))


def test_the_nearest_winners_come_first_and_are_fitted() -> None:
    known = Winners([won(2048, 8), won(128, 16), won(96, 32)])
    found = known.near(at(64), _DESIGNS, 9)
    assert list(found) == [Genome(0, ((2, 32),)), Genome(0, ((4, 16),)), Genome(0, ((8, 8),))]
    assert len(set(found.values())) == 3, "each of another task"
    assert list(known.near(at(64), _DESIGNS, 1)) == [Genome(0, ((2, 32),))]


def test_a_task_that_was_tuned_itself_is_known() -> None:
    known = Winners([won(128, 16), won(64, 8, behind=1.5)])
    assert known.know(at(128))
    assert not known.know(at(64)), "that one lost"
    assert not known.know(at(96))
    assert not known.know(at(128, structure="other"))


def test_what_lost_or_is_far_or_of_another_structure_is_no_start() -> None:
    known = Winners([won(64, 8, behind=1.5), won(64 * 1024, 16), won(64, 32, structure="other")])
    assert not known.near(at(64), _DESIGNS, 9)
    assert list(known.near(at(64 * 32), _DESIGNS, 9)) == [Genome(0, ((4, 16),))], "of those like it, the nearest"
    known = Winners([won(2**9, 16), won(2**20, 8), won(2**30, 4)])
    assert len(known.near(at(64), _DESIGNS, 9)) == 2, "one that is twice as far, beside a near one"


def test_the_leading_variant_is_what_near_tasks_say() -> None:
    both = [
        each
        for extent, behind in ((64, 2.0), (128, 3.0), (4096, 0.2))
        for each in (
            won(extent, 8, behind=max(behind, 1.0)),
            won(extent, 8, variant="other", behind=max(1 / behind, 1.0), structure="o"),
        )
    ]
    known = Winners([*both, won(80, 8), won(90, 8, variant="rare", structure="r")])
    lead = known.lead(at(64), "other", GENERIC)
    assert lead is not None
    assert math.log(2) < lead < math.log(3)
    far = known.lead(at(4096), "other", GENERIC)
    assert far is not None
    assert far < 0
    assert known.lead(at(64), "rare", GENERIC) is None, "no task had both"
    assert known.lead(at(64, structure="t"), "other", GENERIC) is None


def test_winners_are_read_as_they_were_written() -> None:
    winners = [won(96, 32), won(64, 8, variant="other", behind=1.25, structure="o")]
    assert loads(dumps(winners, {"tasks": 2})) == winners
    later = json.loads(gzip.decompress(dumps(winners, {}))) | {"format": 99}
    with pytest.raises(ValueError, match="format 99"):
        loads(gzip.compress(json.dumps(later).encode()))


# -- of real tasks -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tasks(dialect: Dialect) -> list[Task]:
    target = dialect.resolve_target("native", 1)
    return [_matmul("product", *sizes, target) for sizes in ((64, 96, 128), (128, 96, 64))]


@pytest.fixture(scope="module")
def measured(dialect: Dialect, tasks: list[Task]) -> list[tuple[str, float]]:
    return [(c.body, 1e-3 * (1 + i)) for i, c in enumerate(dialect.open(tasks[0], (), None, 0).propose(24))]


@pytest.fixture(scope="module")
def model(dialect: Dialect, tasks: list[Task]) -> str:
    candidates = dialect.open(tasks[0], (), None, 0).propose(16)
    rows = with_task(dialect.features(tasks[0], candidates), tasks[0])
    dataset = Dataset(rows.layout)
    for number, (candidate, row) in enumerate(zip(candidates, rows, strict=True)):
        dataset.add(tasks[0].key, candidate.key, row, 1e-3 * (1 + number % 7))
    return BoostedModel.fit(dataset).dumps()


def genome_of(task: Task, body: str) -> Genome:
    found = SurrogateProposer(task, space_of(task, read_body(body)[0]), (), None, 0)._genome(body)
    assert found
    return found


def test_each_variant_keeps_its_fastest(tasks: list[Task], measured: list[tuple[str, float]]) -> None:
    kept = {winner.variant: winner for winner in winners_of(tasks[0], [*measured, ("", 1e-9)])}
    assert kept.keys() == {read_body(body)[0] for body, _ in measured}
    for name, winner in kept.items():
        mine = [(body, latency) for body, latency in measured if read_body(body)[0] == name]
        assert winner.genomes[0] == genome_of(tasks[0], mine[0][0])
        assert winner.behind == pytest.approx(mine[0][1] / measured[0][1], rel=1e-3)
        close = [body for body, latency in mine if latency <= 1.1 * mine[0][1]]
        assert len(winner.genomes) == min(len(close), 4)
    assert winners_of(tasks[0], []) == []


def test_a_delivery_chooses_among_winners(
    dialect: Dialect, tasks: list[Task], measured: list[tuple[str, float]], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generic = [(body, latency) for body, latency in measured if read_body(body)[0] == GENERIC]
    [winner] = winners_of(tasks[0], [(body, 1e-3) for body, _ in generic[:4]])
    monkeypatch.setattr(foresight, "shipped", lambda _: Winners([winner]))
    search = SurrogateProposer(tasks[1], space_of(tasks[1]), (), None, 0)
    expected = {fitted(genome, search.designs[genome.design]) for genome in winner.genomes}
    found = dialect.suggest(tasks[1], 16, model, 0)
    assert {genome_of(tasks[1], candidate.body) for candidate in found.candidates} <= expected
    assert found.candidates


def test_a_variant_that_led_elsewhere_is_chosen(
    dialect: Dialect, tasks: list[Task], measured: list[tuple[str, float]], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    designs = SurrogateProposer(tasks[0], space_of(tasks[0]), (), None, 0).designs
    home = place_of("matmul", GENERIC, designs)
    [generic] = winners_of(tasks[0], [one for one in measured if read_body(one[0])[0] == GENERIC][:1])
    behind, ahead = replace(generic, behind=2.0), Winner(home, "ahead", at(1), 1.0, ())
    task = replace(tasks[0])
    monkeypatch.setattr(foresight, "shipped", lambda _: Winners([behind, ahead]))
    monkeypatch.setattr(foresight, "_TRUSTED", ("ahead",))
    search = SurrogateProposer(task, space_of(task), (), None, 0)
    assert foresight.leader(task, search, Winners([behind, ahead])) == GENERIC, "it does not apply to this task"
    found = dialect.suggest(task, 8, model, 0).candidates
    assert len(found) > 1, "a program that lost is no start, so there is a search"


def test_winners_of_one_task_are_told_from_those_of_others(
    dialect: Dialect, tasks: list[Task], measured: list[tuple[str, float]], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generic = [(body, 1e-3) for body, _ in measured if read_body(body)[0] == GENERIC]
    won = [*winners_of(tasks[0], generic[:2]), *winners_of(tasks[0], generic[4:6])]
    monkeypatch.setattr(foresight, "shipped", lambda _: Winners(won))
    found = dialect.suggest(tasks[1], 16, model, 0)
    assert found.source_ids.keys() == {candidate.key for candidate in found.candidates}
    assert set(found.source_ids.values()) == {0, 1}


def test_winograd_does_not_lead_where_it_would_wait_for_its_weights() -> None:
    def convolution(channels: int, size: int) -> Task:
        data = TensorSpec("x", (1, size, size, channels), "float32")
        specs = (data, TensorSpec("w", (3, 3, channels, channels), "float32"), data)
        flop = 2.0 * size * size * 9 * channels * channels
        return Task(Workload("c", "c", "conv2d", "", specs, 1, flop), Target("x86", {}, 1), 1, tunable=True)

    assert foresight.starved(convolution(512, 7), "winograd4")
    assert not foresight.starved(convolution(512, 14), "winograd4")
    assert not foresight.starved(convolution(64, 56), "winograd4")
    assert not foresight.starved(convolution(64, 7), "winograd4"), "a cache holds them"
    assert not foresight.starved(convolution(512, 7), GENERIC)


def test_an_aided_search_proposes_winners_first(
    dialect: Dialect, tasks: list[Task], measured: list[tuple[str, float]], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generic = [(body, 1e-3) for body, _ in measured if read_body(body)[0] == GENERIC][:4]
    [winner] = winners_of(tasks[0], generic)
    monkeypatch.setattr(foresight, "shipped", lambda _: Winners([winner]))
    search = SurrogateProposer(tasks[1], space_of(tasks[1]), (), None, 0)
    expected = {fitted(genome, search.designs[genome.design]) for genome in winner.genomes}

    def proposed(*, warm_start: bool, history: object = ()) -> set[Genome]:
        candidates = dialect.open(tasks[1], history, model, 0, warm_start=warm_start).propose(16)  # type: ignore[arg-type]
        return {genome_of(tasks[1], c.body) for c in candidates if read_body(c.body)[0] == GENERIC}

    assert len(expected & proposed(warm_start=True)) >= len(expected) - 1  # two may be one program
    assert not expected & proposed(warm_start=False)


@pytest.mark.parametrize("bits", [256, 512])
def test_what_ships_can_be_read_and_holds_out_what_the_model_does(bits: int) -> None:
    found = shipped_model("metaschedule", "x86", float(bits))
    assert found
    from importlib.resources import files

    data = (files("tunery.dialects.metaschedule") / "data" / f"winners-{bits}.json.gz").read_bytes()
    card = json.loads(gzip.decompress(data))
    assert set(card["held_out"]) == set(found[0].held_out)
    assert not set(card["held_out"]) & set(card["networks"])
    assert len(loads(data)) > 100
    assert not shipped(1).near(at(64), _DESIGNS, 1), "none for vectors that nobody tuned for"


def test_a_target_of_the_closed_form_gives_llvm_its_options_and_finds_what_ships(
    dialect: Dialect, tmp_path: Path
) -> None:
    network = convolution_network(tmp_path, channels=(64, 64), size=28)
    [extracted] = [
        task for task in dialect.extract(network, dialect.resolve_target("native", 1)) if task.workload.kind == "conv2d"
    ]
    for mcpu, own in {"znver4": {}, "znver3": {"vector-width": 256}}.items():
        config = {"kind": "llvm", "mcpu": mcpu, "num-cores": 1, "opt-level": 2, "unswitch": True, **own}
        task = replace(extracted, target=replace(extracted.target, config=config))
        attributes = {name: value for name, value in tvm_target(task.target).attrs.items() if name != "mcpu"}
        unswitched = ("-enable-nontrivial-unswitch=true",)
        assert attributes == {"num-cores": 1, "opt-level": 2, "cl-opt": unswitched, **own}
        search = SurrogateProposer(task, space_of(task), (), None, 0)
        place = place_of(task.workload.kind, GENERIC, search.outlines)
        assert foresight.winners_for(task).near(place, search.designs, 4), mcpu
