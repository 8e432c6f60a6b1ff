"""Which groups are trained on and which are held out, without a leak.

The same convolution occurs in many networks. A held-out network is unseen only if every workload that occurs in it has
left training, on all devices, whichever other networks hold it too.
"""

from collections.abc import Sequence

import numpy as np

from tunery.costmodels.dataset import Group

Fold = tuple[tuple[Group, ...], tuple[Group, ...]]
"""What to train on, and what to judge by."""


def hold_out_networks(groups: Sequence[Group], networks: Sequence[str]) -> Fold:
    wanted = set(networks)
    held = {group.workload_key for group in groups if wanted.intersection(group.networks)}
    train = tuple(group for group in groups if group.workload_key not in held)
    return train, tuple(group for group in groups if group.workload_key in held)


def by_network(groups: Sequence[Group], folds: int = 4, seed: int = 0) -> list[Fold]:
    """Return folds that hold out whole networks; a task of no known network counts as a network of its own. A workload
    is judged once, in the first fold that holds out one of its networks, and leaves training in all of them."""
    owners = sorted({name for group in groups for name in _owners(group)})
    order = np.random.default_rng(seed).permutation(len(owners))
    found: list[Fold] = []
    judged: set[str] = set()
    for part in range(min(folds, len(owners))):
        chosen = {owners[i] for i in order[part::folds]}
        held = {group.workload_key for group in groups if chosen.intersection(_owners(group))}
        train = tuple(group for group in groups if group.workload_key not in held)
        test = tuple(group for group in groups if group.workload_key in held - judged)
        judged |= held
        if train and test:
            found.append((train, test))
    return found


def by_kind(groups: Sequence[Group]) -> dict[str, Fold]:
    found = {}
    for kind in sorted({group.kind for group in groups}):
        held = {group.workload_key for group in groups if group.kind == kind}
        train = tuple(group for group in groups if group.workload_key not in held)
        if train:
            found[kind] = (train, tuple(group for group in groups if group.workload_key in held))
    return found


def _owners(group: Group) -> tuple[str, ...]:
    return group.networks or (f"task {group.workload_key}",)
