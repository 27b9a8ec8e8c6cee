"""Reports that cross a network: encrypted, and only from agents that hold a key."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
import zmq

import caboose
from support.processes import caboose_command, clean_environment, running_daemon, wait_until


def test_an_agent_with_the_printed_keys_is_heard_and_one_with_others_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "keys"
    made = subprocess.run(
        caboose_command("keys", "new", str(directory)),
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    printed = dict(re.findall(r"export (\w+)='([^']+)'", made.stdout))
    assert set(printed) == {"CABOOSE_SERVER_KEY", "CABOOSE_AGENT_KEY"}
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with running_daemon(tmp_path / "daemon", "--keys", str(directory)) as daemon:
        monkeypatch.setenv("CABOOSE_SERVER_KEY", printed["CABOOSE_SERVER_KEY"])

        stranger = zmq.curve_keypair()[1].decode()
        monkeypatch.setenv("CABOOSE_AGENT_KEY", stranger)
        with caboose.attach(model, optimizer, job="stranger", endpoint=daemon.endpoint) as monitor:
            monitor.step(1.0)

        monkeypatch.setenv("CABOOSE_AGENT_KEY", printed["CABOOSE_AGENT_KEY"])
        with caboose.attach(model, optimizer, job="friend", endpoint=daemon.endpoint) as monitor:
            monitor.step(1.0)
            assert wait_until(lambda: daemon.get("/api/v1/jobs")["jobs"], 10)

        assert [job["job"] for job in daemon.get("/api/v1/jobs")["jobs"]] == ["friend"]
