"""Variants of a workload: other algorithms and loop structures for the same result."""
