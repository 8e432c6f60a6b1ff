import numpy as np
from costmodel_data import LAYOUT, table

from tunery.costmodels import BoostedModel, Recipe, load_cost_model
from tunery.costmodels.boosted import OnlineTrainer, Row, ordered


def rows_of(first: int, last: int, law: int = 1) -> list[Row]:
    return [
        (g.task_key, key, row, float(latency**law))
        for g in table(seed=3).groups[first:last]
        for key, row, latency in zip(g.keys, g.rows, g.latencies, strict=True)
    ]


def test_it_learns_in_steps_and_gets_better() -> None:
    warm = OnlineTrainer(LAYOUT)
    assert warm.learn(rows_of(0, 1)[:8], None) is None, "too little to learn from"
    first = warm.learn(rows_of(0, 2), None)
    assert first is not None
    later = first
    for step in range(2, 12, 2):
        later = warm.learn(rows_of(step, step + 2), None) or later
    unseen = rows_of(20, 24)
    assert ordered(load_cost_model(later), unseen, LAYOUT)[0] > ordered(load_cost_model(first), unseen, LAYOUT)[0]


def test_a_worse_model_does_not_replace_a_better_one() -> None:
    good = BoostedModel.train([(g.rows, g.gains) for g in table(seed=3).groups], Recipe()).dumps()
    warm = OnlineTrainer(LAYOUT)
    rng = np.random.default_rng(0)
    noise = [(task, key, rng.random(12).astype(np.float32), latency) for task, key, _, latency in rows_of(0, 3)]
    judged = rows_of(4, 5)
    # What is taught is noise, what is held out (every fourth) follows the law.
    mixed = [judged.pop() if (i + 1) % 4 == 0 and judged else row for i, row in enumerate(noise)]
    assert warm.learn(mixed, None) is not None, "nothing is better than no model"
    again = OnlineTrainer(LAYOUT)
    again._current = load_cost_model(good)
    assert again.learn(mixed, None) is None


def test_what_was_held_out_is_learned_the_next_time() -> None:
    warm = OnlineTrainer(LAYOUT)
    warm.learn(rows_of(0, 2), None)
    assert len(warm._dataset) == 80


def test_order_of_pairs() -> None:
    model = BoostedModel.train([(g.rows, g.gains) for g in table().groups], Recipe())
    share, pairs = ordered(model, rows_of(0, 1), LAYOUT)
    assert share > 0.7
    assert pairs == 40 * 39 // 2
    assert ordered(model, [], LAYOUT) == (0.0, 0)
