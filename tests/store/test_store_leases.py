"""Leases under random steps; `benchmarks/leases.py` takes 100,000 of them, with clocks that are off."""

from leases import fuzz


def test_no_job_is_in_two_hands_and_leases_only_grow(url: str) -> None:
    counts = fuzz(url, 120, 3, 3, seed=0, skewed=url.startswith("postgresql"))
    assert len(counts) == 8
