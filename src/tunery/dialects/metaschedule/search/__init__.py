"""Search spaces and proposers: what is tried next for a task."""
