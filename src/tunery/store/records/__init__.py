"""Records and their tasks: written, read, ranked and passed over."""
