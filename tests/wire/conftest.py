"""Hypothesis looks for wrong answers here, not for slow ones: the machine may be busy with other tests."""

from hypothesis import HealthCheck, settings

settings.register_profile("wire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wire")
