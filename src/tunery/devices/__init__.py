"""Things that run kernels: each describes itself, and knows its own clock, load, caches and energy."""
