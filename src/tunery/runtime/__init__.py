"""Workers on hosts: pools of them, the services they run, and the scheduler that says when each stage may run."""

PRELOAD = {"metaschedule": "tunery.runtime.preload"}
"""What the zygote of a dialect's workers imports."""
