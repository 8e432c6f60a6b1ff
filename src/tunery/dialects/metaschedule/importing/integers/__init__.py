"""Quantised networks in integers."""
