"""Settings for all tests: a loaded machine may make a test slow, but must not make it fail."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("tunery", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tunery")

# Beside other work every measurement would wait for its patience; the watch has tests of its own.
os.environ.setdefault("TUNERY_LOAD_WATCH", "off")
