"""The search for one task's fastest candidate: propose, filter, build, race, record."""
