"""From a candidate to a kernel that runs, and from a network to a compiled file."""
