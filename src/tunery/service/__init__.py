"""Jobs, for whoever asks: in this process (`session`), or for the clients of a service (the room `web`).

manager         which job begins, and when; a clients' room of many jobs
runner          does a job of any kind (`assignment`) with what a `workplace` has: store, scheduler, workers
kinds           what a job can do: one module for each kind
session         one job after another in this process, from the command line or a script
stored_jobs     jobs as the store keeps them; `adoption` says which are done here
queue_policy    which job begins
budgets         what a job may use: of its account's month, and with each of several dialects
"""
