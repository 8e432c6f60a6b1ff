"""Candidates as decisions: read, bred, drafted; what is replayed, and that nothing is replayed twice."""

import math
import random

import numpy as np
import pytest

pytest.importorskip("tvm")

from metaschedule_models import small_network

from tunery.costmodels.gaussian import GaussianProcess
from tunery.dialects import Dialect, Observation, get_dialect
from tunery.dialects.metaschedule.codegen.calibration import _matmul
from tunery.dialects.metaschedule.loading.preparing import TILES
from tunery.dialects.metaschedule.search.breeding import Breeder, extent_of, stepped
from tunery.dialects.metaschedule.search.genomes import (
    CATEGORY,
    LOCATION,
    TILE,
    Design,
    Gene,
    Genome,
    _sources,
    tilings,
)
from tunery.dialects.metaschedule.search.surrogate import Encoder
from tunery.dialects.metaschedule.variants.program import (
    DesignSpace,
    post_process,
    program_key,
    replay,
    space_of,
    trace_body,
    variants,
)
from tunery.dialects.metaschedule.variants.variant import read_body
from tunery.domain import Outcome, Task

pytestmark = pytest.mark.tvm

GENES = (
    Gene(TILE, 4, 48, 64),
    Gene(TILE, 2, 36, 4),
    Gene(CATEGORY, values=(0, 1, 2)),
    Gene(TILE, 2, 36, 64, source=(1, 1, 2)),
)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    dialect = get_dialect("metaschedule")
    return dialect.extract(small_network(tmp_path_factory.mktemp("network")), dialect.resolve_target("native", 1))


def spaces(tasks: list[Task]) -> list[tuple[Task, DesignSpace]]:
    """What MetaSchedule's own rules search: designs of register tiles have no trace."""
    found = [(task, space_of(task, name)) for task in tasks if task.tunable for name in variants(task).found]
    return [(task, space) for task, space in found if space.context is not None]


def fits(genome: Genome) -> bool:
    return all(
        math.prod(choice) == extent_of(gene, genome.choices) and choice[-1] <= gene.innermost
        for gene, choice in zip(GENES, genome.choices, strict=True)
        if gene.kind == TILE
    )


def test_bred_genomes_fit_their_genes_and_differ_from_their_parents() -> None:
    breeder = Breeder([GENES, GENES], "matmul", 1)
    drawn = [breeder.drawn() for _ in range(100)]
    children = [breeder.child(drawn[:4]) for _ in range(300)]
    assert all(map(fits, drawn))
    assert all(map(fits, children))
    assert len(set(children) - set(drawn[:4])) > 100
    assert {genome.design for genome in children} == {0, 1}


def test_a_step_keeps_the_product_and_the_limit() -> None:
    rng = random.Random(0)
    tiles = {(2, 3, 4)}
    for _ in range(200):
        tiles.add(stepped(rng.choice(sorted(tiles)), 4, rng))
    assert tiles <= set(tilings(24, 3, 4))
    assert len(tiles) > 10


def test_convolutions_are_mostly_drawn_with_vectors_of_channels() -> None:
    genes = (Gene(TILE, 4, 28, 64), Gene(TILE, 4, 96, 64))
    drawn = [Breeder([genes], "conv2d", seed).drawn().choices for seed in range(200)]
    vectors = sum(channels[-1] in (8, 16, 32) and rows[-1] * channels[-1] <= 512 for rows, channels in drawn)
    assert vectors > 0.75 * len(drawn)


def test_a_genome_is_the_candidate_its_body_describes(tasks: list[Task]) -> None:
    checked = 0
    for task, space in spaces(tasks):
        designs = [Design(number, design.trace, space) for number, design in enumerate(space.designs)]
        breeder = Breeder([design.genes for design in designs], task.workload.kind, 0)
        for _ in range(6):
            genome = breeder.drawn()
            design = designs[genome.design]
            schedule, genome = design.apply(design.settled(genome))
            if not post_process(schedule, space):
                continue
            body = design.body(genome)
            again = replay(space, body)
            assert program_key(again.mod) == program_key(schedule.mod)
            assert trace_body(again.trace, space) == body
            assert design.read(*read_body(body)[1]) == genome
            checked += 1
    assert checked > 12


def test_a_tile_that_follows_one_of_two_alike_is_told_only_by_what_differs() -> None:
    alike = [[(3, 1), (3, 1), (1, 1)], [(1, 3), (1, 3), (3, 1)]]
    assert _sources(2, alike) == [(0, 1, 1), (1, 1, 1)]
    assert _sources(2, [*alike, [(3, 1), (1, 3), (1, 3)]]) == [(1, 1, 1)]
    assert _sources(1, alike) == []


def test_the_draft_finds_the_best_of_a_space_by_looking_at_little_of_it() -> None:
    breeder, encoder = Breeder([GENES], "matmul", 0), Encoder([GENES])

    def speed(genome: Genome) -> float:
        tile, reduced, category = genome.choices[:3]
        return -float(
            (np.log2(tile[-1]) - 3) ** 2 + np.log2(tile[0]) ** 2 + abs(reduced[-1] - 3) + abs(category[0] - 1)
        )

    everything = list({breeder.drawn(): None for _ in range(4000)})
    background = encoder.rows(everything[:100])
    seen = everything[:16]
    for _ in range(5):
        targets = np.array([speed(genome) for genome in seen])
        draft = GaussianProcess(encoder.rows(seen), targets, np.full(len(seen), 0.01), background)
        others = [genome for genome in everything if genome not in seen]
        picked = draft.pick(encoder.rows(others), 8, 1.0)
        assert len(set(picked)) == 8
        seen += [others[i] for i in picked]
    best = max(map(speed, everything))
    assert max(map(speed, seen)) == best
    assert np.mean([speed(genome) == best for genome in everything]) < 0.01
    truth = [speed(genome) for genome in others]
    assert np.corrcoef(draft.predict(encoder.rows(others)), truth)[0, 1] > 0.8


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Genome]:
    found: list[Genome] = []
    apply = Design.apply

    def counted(self: Design, genome: Genome) -> tuple[object, Genome]:
        found.append(genome)
        return apply(self, genome)

    monkeypatch.setattr(Design, "apply", counted)
    return found


def told(dialect: Dialect, task: Task, count: int, rounds: int, model: str | None) -> list[Observation]:
    proposer = dialect.open(task, [], model, 3)
    history: list[Observation] = []
    for _ in range(rounds):
        latest = [Observation(c, Outcome.OK, 1e-3 + int(c.key, 16) % 97 * 1e-5) for c in proposer.propose(count)]
        proposer.observe(latest)
        history += latest
    return history


def test_few_replays_per_candidate_none_twice_and_none_to_resume(tasks: list[Task], replays: list[Genome]) -> None:
    from tunery.costmodels import BoostedModel, Dataset, with_task

    dialect = get_dialect("metaschedule")
    task = next(task for task in tasks if task.workload.kind == "matmul")
    first = dialect.open(task, [], None, 0).propose(24)
    rows = with_task(dialect.features(task, first), task)
    dataset = Dataset(rows.layout)
    for i, (candidate, row) in enumerate(zip(first, rows, strict=True)):
        dataset.add(task.key, candidate.key, row, 1e-3 * (1 + i))
    model = BoostedModel.fit(dataset).dumps()
    replays.clear()
    history = told(dialect, task, 8, 4, model)
    assert len(history) == len({one.candidate.key for one in history}) == 32
    assert len(replays) == len(set(replays)) <= 8 + 8 + 3 * 10 + 8
    seen = set(replays)
    replays.clear()
    resumed = dialect.open(task, history, model, 3)
    assert not replays
    after = resumed.propose(8)
    proposed = {one.candidate.key for one in history}
    assert len(after) == 8
    assert not proposed & {candidate.key for candidate in after}
    assert not {genome for genome in replays if genome in seen} & {
        Design(number, design.trace, space_of(task)).read(*read_body(one.candidate.body)[1])
        for one in history
        if read_body(one.candidate.body)[0] != TILES
        for number, design in enumerate(space_of(task).designs)
    }


def test_a_seed_decides_a_search(tasks: list[Task]) -> None:
    dialect = get_dialect("metaschedule")
    task = next(task for task in tasks if task.workload.kind == "conv2d")
    one, other = (told(dialect, task, 6, 3, None) for _ in range(2))
    assert one == other
    assert len(one) == 18


def test_a_draft_of_a_long_search_learns_from_the_best_and_the_latest(
    tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunery.dialects.metaschedule.search import proposer

    targets = np.array([5.0, 1, 9, 2, 3, 8, 0, 4])
    assert proposer.most_telling(targets, 5).tolist() == [2, 4, 5, 6, 7]
    sizes = []

    class Watched(GaussianProcess):
        def __init__(self, rows, *rest) -> None:  # type: ignore[no-untyped-def]
            sizes.append(len(rows))
            super().__init__(rows, *rest)

    monkeypatch.setattr(proposer, "_MOST_LESSONS", 12)
    monkeypatch.setattr(proposer, "GaussianProcess", Watched)
    task = next(task for task in tasks if task.workload.kind == "matmul")
    assert len({one.candidate.key for one in told(get_dialect("metaschedule"), task, 8, 5, None)}) == 40
    assert max(sizes) == 12


def test_an_outline_tells_the_genes_but_for_where_blocks_may_be_computed() -> None:
    target = get_dialect("metaschedule").resolve_target("native", 1)
    space = space_of(_matmul("product", 64, 96, 128, target))
    for number, one in enumerate(space.designs):
        design = Design(number, one.trace, space)
        outline = design.outline
        assert "genes" not in vars(design), "to find these takes as long as the rest of a search without measurements"
        assert [(gene.kind, gene.extent, gene.source) for gene in outline] == [
            (gene.kind, gene.extent, gene.source) for gene in design.genes
        ]
        assert [gene for gene in outline if gene.kind != LOCATION] == [g for g in design.genes if g.kind != LOCATION]
