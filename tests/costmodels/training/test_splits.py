from costmodel_data import table

from tunery.costmodels.training.evaluation import by_network, hold_out_networks


def test_what_a_held_out_network_shares_leaves_training() -> None:
    groups = table().groups
    train, test = hold_out_networks(groups, ["n3"])
    assert not {g.workload_key for g in train} & {g.workload_key for g in test}
    assert all("n3" not in g.networks for g in train)
    assert {g.task_key for g in test} == {g.task_key for g in groups if "n3" in g.networks}
    assert any("n2" in g.networks for g in test), "a workload that n2 shares with n3"


def test_the_same_workload_on_another_target_leaves_too() -> None:
    from dataclasses import replace

    groups = table(shared=False).groups
    twin = replace(groups[0], task_key="other", networks=("n7",))
    train, test = hold_out_networks([*groups, twin], ["n0"])
    assert twin in test
    assert twin not in train


def test_every_workload_is_judged_once_and_never_trained_on() -> None:
    groups = table().groups
    folds = by_network(groups, 4)
    judged = [g.task_key for _, test in folds for g in test]
    assert sorted(judged) == sorted(g.task_key for g in groups)
    for train, test in folds:
        assert train
        held = {name for g in test for name in g.networks}
        assert not {g.workload_key for g in train} & {g.workload_key for g in test}
        assert held - {name for g in train for name in g.networks}, "a whole network is unseen"


def test_one_network_cannot_be_split() -> None:
    assert by_network(table(networks=1, shared=False).groups) == []
