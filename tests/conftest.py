"""Fixtures every test may use."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import DaemonProcess, running_daemon

# A shell without a terminal starts what it puts in the background with SIGINT ignored, and children inherit that:
# tests that interrupt a process need it to hear them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A real daemon on free loopback ports."""
    with running_daemon(tmp_path / "daemon") as process:
        yield process


ALONE = (
    "test_never_in_the_way.py",
    "test_daemon_killed.py",
    "test_memory.py",
    "test_cardinality.py",
    "test_page_speed.py",
)
"""Files whose slow tests measure times or sizes."""


LONG = (
    "test_memory.py",
    "test_never_in_the_way.py",
    "test_right_numbers.py",
    "test_rollback_sharded.py",
    "test_rollback_restraint.py",
    "test_contact_sheets.py",
    "test_deploy.py",
    "test_examples.py",
    "test_report_page.py",
    "test_preflight_ranks.py",
    "test_hunted_ranks.py",
    "test_fleet_page.py",
)
"""Files whose slow tests take minutes together, and are run by `make test-long`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what must not run beside anything else, and what takes long."""
    for item in items:
        if item.path.name in LONG and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.long)
        if item.path.name in ALONE and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.alone)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the memory tests over a million steps")
