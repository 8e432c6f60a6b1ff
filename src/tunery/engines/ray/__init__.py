"""The nodes of a Ray cluster as hosts; Ray carries the bytes between an agent on each node and us."""
