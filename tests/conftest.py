"""Settings for all tests: a loaded machine may make a test slow, but must not make it fail."""

from hypothesis import HealthCheck, settings

settings.register_profile("tunery", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tunery")
