"""One tuning job: from a model's tasks to verified records."""
