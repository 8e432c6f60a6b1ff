"""Candidates that are one configuration of a space: its parameters, and the restrictions on them."""
