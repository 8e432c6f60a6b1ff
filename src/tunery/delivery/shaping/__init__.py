"""Networks for several shapes: compiled one by one to one file, which calls the one that fits its inputs."""
