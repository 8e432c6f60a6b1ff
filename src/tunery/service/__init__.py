"""Jobs, for whoever asks: in this process (`session`), or for the clients of a service (the room `web`).

manager         runs jobs of every kind over one scheduler
verbs           what a kind of job does
session         one verb after another in this process, from the command line or a script
stored_jobs     jobs as the store keeps them; `resuming` goes on with them
queue_policy    which job begins
"""
