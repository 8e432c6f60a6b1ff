"""Bundles: a compiled network with all that runs it from C and C++, without Python."""
