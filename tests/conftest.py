"""Fixtures every test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import DaemonProcess, running_daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A real daemon on free loopback ports."""
    with running_daemon(tmp_path / "daemon") as process:
        yield process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the memory tests over a million steps")
