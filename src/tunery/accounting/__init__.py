"""What work costs: prices, power, budgets, and the accounts that jobs are charged to."""
