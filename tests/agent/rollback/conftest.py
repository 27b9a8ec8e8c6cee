"""Fixtures for runs that have their brake on."""

from collections.abc import Callable

import pytest

import caboose
from caboose.report import sender
from caboose.rollback import enable
from support.braked import Braked
from support.collector import Collector


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is ready as soon as the steps have passed, for there are no rules here; and agents speak often."""
    monkeypatch.setattr(enable, "HISTORY_SECONDS", 0.0)
    monkeypatch.setattr(sender, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(sender, "HEARTBEAT_SECONDS", 0.1)


@pytest.fixture
def guarded(attach: Callable[..., caboose.Monitor], listening: Collector) -> Callable[..., Braked]:
    """A run that is about to begin."""
    return lambda **options: Braked(attach, listening, **options)
