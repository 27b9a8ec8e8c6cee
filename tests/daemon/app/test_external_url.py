"""Where the links of alerts, runbooks and agents begin."""

from pathlib import Path

import pytest

from caboose_daemon.config import ConfigError, load
from support.processes import running_daemon
from support.served import served


def test_links_begin_with_the_address_that_people_use(tmp_path: Path) -> None:
    with running_daemon(tmp_path, env={"CABOOSE_EXTERNAL_URL": "https://monitor.test/caboose"}) as daemon:
        line = next(
            line for line in daemon.text("/metrics").splitlines() if line.startswith("caboose_daemon_links_info")
        )
        assert 'url="https://monitor.test/caboose"' in line
        assert 'runbooks="https://monitor.test/caboose/runbooks"' in line


def test_without_one_they_begin_with_host_and_port(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        assert daemon.state.url == daemon.url


@pytest.mark.parametrize("url", ["monitor.test", "ftp://monitor.test"])
def test_an_address_that_is_no_url_is_one_line(tmp_path: Path, url: str) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text(f"[daemon]\nexternal_url = '{url}'\n")

    with pytest.raises(ConfigError, match=r"external_url = .*: expected http://host:port or https://host/path"):
        load(file)
