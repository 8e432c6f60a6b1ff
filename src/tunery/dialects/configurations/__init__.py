"""Candidates that are one configuration of a space: its parameters, the restrictions on them, and the search."""
