"""What a job may use: a share of its account's month, and how several dialects share one budget."""
