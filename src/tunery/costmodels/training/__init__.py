"""Training cost models: collecting records, building datasets, searching model families, evaluation."""
