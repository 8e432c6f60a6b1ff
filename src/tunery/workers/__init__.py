"""What runs inside worker processes: the services that jobs call there, and what the zygote imports for them.

A worker is forked in milliseconds, but the first waits for this import; nothing here needs the store, the scheduler or
the jobs.
"""

PRELOAD = {"metaschedule": "tunery.workers.preload"}
"""What the zygote of a dialect's workers imports."""
