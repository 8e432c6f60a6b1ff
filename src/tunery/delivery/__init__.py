"""From records to answers: the ladder of choices, loading compiled networks, and whole-network comparison."""
