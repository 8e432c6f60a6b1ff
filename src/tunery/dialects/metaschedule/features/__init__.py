"""Feature rows of candidates and the cost models that read them."""
