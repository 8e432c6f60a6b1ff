"""On which task, and on which candidates, a job spends its budget next."""
