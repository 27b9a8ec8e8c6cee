"""Fixtures of the monitoring tests."""

from collections.abc import Iterator

import pytest

from support.watched_fleet import WatchedFleet, watched_fleet

STORY_SECONDS = 30.0
STEPS = 160


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    """30 s of several jobs, one of them real, recorded by Prometheus and VictoriaMetrics."""
    with watched_fleet(tmp_path_factory.mktemp("fleet"), seconds=STORY_SECONDS, steps=STEPS) as watched:
        yield watched
