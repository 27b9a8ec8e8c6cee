"""Real relays between ranks and a daemon: the same findings, no loss without a count, keys on both sides."""

import math
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caboose_wire import HelloRequest, Module, Phases, StepReport, encode
from caboose_wire.bundles import UP_START, Parcel, pack
from caboose_wire.messages import HISTOGRAM_BINS
from support.processes import DaemonProcess, caboose_command, running_daemon, wait_until
from support.ranks import EVERYTHING, LAYERS, SimulatedRank, a_report, send_steps, simulated_ranks
from support.relays import relay_tree, running_relay
from support.training import finish, training

pytestmark = pytest.mark.slow

WORLD = 64
STEPS = 60
MODULES = (Module("act", "ReLU", 8), Module("head", "Linear", 4))
TREES: dict[str, tuple[int, ...]] = {"no relay": (), "a relay for each node": (4,), "relays of relays": (2, 2)}


def report(rank: int, step: int) -> StepReport:
    """Replicas that divide the layers; rank 9 diverges, rank 5 has a NaN, rank 20 is slow, units of a module die."""
    draw = np.random.default_rng((rank, step))
    mine = rank % len(LAYERS)
    loss = 2.0 + 0.02 * math.sin(step) + 0.01 * float(draw.standard_normal())
    arrays = {"grad_norm": np.array([0.1 * (1 + mine)], dtype=np.float32)}
    changes: dict[str, Any] = {}
    if is_sampled := step % 10 == 0:
        arrays["local_grad_norm"] = draw.random(len(LAYERS)).astype(np.float32)
        prints = np.arange(len(LAYERS)) + step + (rank == 9 and step >= 30)
        arrays["layer_fingerprint"] = prints.astype(np.float32)
        for name in ("std", "max", "zero_fraction", "saturated", "dead"):
            arrays[f"activation_{name}"] = draw.random(len(MODULES)).astype(np.float32)
        if step >= 40:
            arrays["activation_dead"][:] = 0.9
        arrays["activation_order"] = np.arange(len(MODULES), dtype=np.float32)
        arrays["activation_histogram"] = draw.random((len(MODULES), HISTOGRAM_BINS)).astype(np.float32)
        changes = {"fingerprint": 1000 + step + (rank == 9 and step >= 30), "local_grad_norm": 1.0}
    slow = 0.05 if rank == 20 and step > 20 else 0.0
    return a_report(
        step,
        loss=float("nan") if (rank, step) == (5, 50) else loss,
        is_sampled=is_sampled,
        sample_every=10,
        phases=Phases(0.2, 0.01, 0.05 + slow, 0.1, 0.01, 0.0, 0.0, 0.0 if slow else 0.05),
        slices={"grad_norm": (mine, 1)},
        arrays=arrays,
        **changes,
    )


def play(daemon: DaemonProcess, endpoints: Sequence[str]) -> dict[str, Any]:
    """The story of 64 ranks, divided among these endpoints; what the daemon makes of it, without its own times."""
    told = {"visible": (*EVERYTHING, "fingerprint"), "modules": MODULES, "is_batching": True}
    with simulated_ranks(endpoints[0], WORLD, told, per_host=8, endpoints=endpoints) as ranks:
        assert wait_until(lambda: daemon.get("/api/v1/daemon")["num_peers"] == WORLD, 10)
        for step in range(1, STEPS + 1):
            for one in ranks:
                one.send(report(one.hello.rank, step))
            assert wait_until(lambda step=step: daemon.step("train") >= step, 10)
        found = {name: daemon.get(f"/api/v1/jobs/train/{name}") for name in ("findings", "incidents", "series")}
        sample = daemon.get("/api/v1/jobs/train/layers")
        return timeless({**found, "layers": sample})


def timeless(found: Any) -> Any:
    """Without what a daemon's own clock decides."""
    if isinstance(found, dict):
        return {k: timeless(v) for k, v in found.items() if k not in OWN_TIMES}
    return [timeless(one) for one in found] if isinstance(found, list) else found


OWN_TIMES = frozenset({"detected_time", "lag_seconds", "last_time", "opened", "opened_time", "closed_time", "time"})


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a daemon makes of the same ranks behind each tree."""
    found = {}
    for name, widths in TREES.items():
        folder = tmp_path_factory.mktemp("tree")
        with running_daemon(folder / "daemon") as daemon, relay_tree(folder, daemon.endpoint, widths) as relays:
            found[name] = play(daemon, [relay.endpoint for relay in relays] or [daemon.endpoint])
    return found


@pytest.mark.parametrize("name", [name for name in TREES if TREES[name]])
def test_any_tree_gives_the_same_findings_as_none(pictures: dict[str, Any], name: str) -> None:
    plain = pictures["no relay"]
    rules = {finding["rule"] for finding in plain["findings"]["findings"]}
    assert {"non_finite", "replica_desync"} <= rules, rules
    assert pictures[name] == plain


def metric(daemon: DaemonProcess, name: str) -> float:
    lines = [line for line in daemon.text("/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def introduce_on_request(ranks: Sequence[SimulatedRank]) -> bool:
    """Does what agents do when they are asked."""
    for rank in ranks:
        while (message := rank.receive(0)) is not None:
            if isinstance(message, HelloRequest):
                rank.send(rank.hello)
    return True


def steps_go_on(daemon: DaemonProcess, ranks: Sequence[SimulatedRank], step: int) -> bool:
    """Whether a step that is reported now is judged."""
    send_steps(list(ranks), step, step)
    return bool(wait_until(lambda: introduce_on_request(ranks) and daemon.step("train") >= step, 10))


def test_a_killed_relay_loses_no_more_than_it_had_and_its_ranks_come_back(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path / "daemon") as daemon,
        running_relay(tmp_path / "first", daemon.endpoint) as first,
        simulated_ranks(first.endpoint, 4) as ranks,
    ):
        assert steps_go_on(daemon, ranks, 1)
        first.kill()
        send_steps(ranks, 2, 5)  # they wait in the ranks, as in an agent's queue
        with running_relay(tmp_path / "second", daemon.endpoint, listen=first.endpoint):
            assert wait_until(lambda: introduce_on_request(ranks) and daemon.step("train") >= 5, 20)
            assert steps_go_on(daemon, ranks, 6)
            job = daemon.get("/api/v1/jobs/train")
    assert (job["attempt"], job["num_live"], job["num_steps"]) == (1, 4, 6)


def test_what_waits_for_a_daemon_that_is_away_arrives_when_it_is_back(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path / "daemon") as daemon,
        running_relay(tmp_path / "relay", daemon.endpoint) as relay,
        simulated_ranks(relay.endpoint, 4) as ranks,
    ):
        assert steps_go_on(daemon, ranks, 1)
        daemon.kill()
        time.sleep(0.3)  # until the relay has seen it
        send_steps(ranks, 2, 40)
        with running_daemon(tmp_path / "daemon", listen=daemon.endpoint) as again:
            assert wait_until(lambda: introduce_on_request(ranks) and again.step("train") >= 40, 20)
            assert steps_go_on(again, ranks, 41)
            job = again.get("/api/v1/jobs/train")
            assert job["num_steps"] == 41
            assert metric(again, "caboose_relay_messages_dropped_total") == 0


def test_what_the_buffer_cannot_hold_is_counted(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path / "daemon") as daemon,
        running_relay(tmp_path / "relay", daemon.endpoint, "--buffer-mb", "1") as relay,
        simulated_ranks(relay.endpoint, 2) as ranks,
    ):
        assert steps_go_on(daemon, ranks, 1)
        daemon.kill()
        time.sleep(0.3)
        send_steps(ranks, 2, 2000)
        assert wait_until(lambda: "messages dropped so far" in relay.log.read_text(), 10)
        with running_daemon(tmp_path / "daemon", listen=daemon.endpoint) as again:
            assert wait_until(lambda: introduce_on_request(ranks) and again.step("train") >= 2000, 20)
            dropped = wait_until(lambda: metric(again, "caboose_relay_messages_dropped_total"), 10)
            steps = again.get("/api/v1/jobs/train")["num_steps"]
    assert dropped > 0
    assert steps == pytest.approx(2000 - dropped / 2, abs=2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_that_is_asked_to_end_sends_what_waits(tmp_path: Path, number: int) -> None:
    with (
        running_daemon(tmp_path / "daemon") as daemon,
        running_relay(tmp_path / "relay", daemon.endpoint, "--hold-ms", "10000") as relay,
        simulated_ranks(relay.endpoint, 4) as ranks,
    ):
        assert wait_until(lambda: daemon.get("/api/v1/daemon")["num_peers"] == 4, 10)
        send_steps(ranks[:3], 1, 5)  # it waits for the fourth
        send_steps(ranks[3:], 1, 1)
        time.sleep(0.3)
        send_steps(ranks[:3], 6, 6)
        time.sleep(0.3)
        assert relay.stop(number) == 0, relay.log.read_text()
        found = wait_until(lambda: metric(daemon, 'caboose_messages_received_total{type="StepReport"}') == 19, 10)
        assert found, relay.log.read_text()
        assert wait_until(lambda: not Path(f"/proc/{relay.process.pid}").exists(), 5)


def keys(directory: Path, *arguments: str) -> dict[str, str]:
    """Makes keys; the variables that agents need."""
    command = caboose_command("keys", *arguments[:1], str(directory), *arguments[1:])
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.removeprefix("export ") for line in text.splitlines() if "=" in line]
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}


def test_keys_are_checked_on_both_sides(tmp_path: Path) -> None:
    of_relay, of_agent = keys(tmp_path / "daemon-keys", "new"), keys(tmp_path / "relay-keys", "new")
    with running_daemon(tmp_path / "daemon", "--keys", str(tmp_path / "daemon-keys")) as daemon:
        arguments = ("--keys", str(tmp_path / "relay-keys"))
        with running_relay(tmp_path / "relay", daemon.endpoint, *arguments, env=of_relay) as relay:
            with simulated_ranks(relay.endpoint, 2) as strangers:
                send_steps(strangers, 1, 2)
                time.sleep(1.0)
                assert daemon.get("/api/v1/jobs")["jobs"] == [], "they have no keys"
            env = {**of_agent, "CABOOSE_ENDPOINT": relay.endpoint}
            with training(tmp_path / "job", "--steps", "30", env=env) as process:
                finish(process, tmp_path / "job")
            assert wait_until(lambda: daemon.get("/api/v1/jobs")["jobs"], 5)
        with running_relay(tmp_path / "other", daemon.endpoint, env={**of_relay, **of_agent}) as other:
            with simulated_ranks(other.endpoint, 1, {"job": "wrong"}) as ranks:
                send_steps(ranks, 1, 2)
                time.sleep(1.0)
            assert [row["job"] for row in daemon.get("/api/v1/jobs")["jobs"]] != ["wrong"], (
                "its keys are not the daemon's"
            )


def test_two_real_jobs_report_through_a_socket_file(tmp_path: Path) -> None:
    listen = f"ipc://{tmp_path}/relay.sock"
    with (
        running_daemon(tmp_path / "daemon", "--rollback", "auto") as daemon,
        running_relay(tmp_path / "relay", daemon.endpoint, listen=listen) as relay,
    ):
        assert relay.endpoint == listen
        env = {"CABOOSE_ENDPOINT": listen}
        with (
            training(tmp_path / "one", env={**env, "CABOOSE_JOB": "one"}) as one,
            training(tmp_path / "two", env={**env, "CABOOSE_JOB": "two"}) as two,
        ):
            finish(one, tmp_path / "one")
            finish(two, tmp_path / "two")
        jobs = {row["job"]: row for row in daemon.get("/api/v1/jobs")["jobs"]}
        text = daemon.text("/metrics")
    assert {job["state"] for job in jobs.values()} == {"ended"}
    assert set(jobs) == {"one", "two"}
    assert "caboose_relays_connected 1.0" in text


def test_a_relay_in_the_way_of_a_live_one_is_refused(tmp_path: Path) -> None:
    listen = f"ipc://{tmp_path}/relay.sock"
    with running_relay(tmp_path / "one", "tcp://127.0.0.1:9", listen=listen):
        command = caboose_command("relay", "--listen", listen, "--upstream", "tcp://127.0.0.1:9")
        found = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert found.returncode == 2
    assert "another relay listens there" in found.stderr


def test_damaged_bundles_end_neither_the_daemon_nor_a_relay(tmp_path: Path) -> None:
    whole = pack(UP_START, [Parcel(number, encode(a_report(number))) for number in range(4)])
    damaged = [
        [UP_START],
        [UP_START, b""],
        [UP_START, b"\xc1", b"x" * 100],
        [*whole[:2], whole[2][:-7]],
        [*whole[:2], bytes(len(whole[2]))],
        [*whole, b"one more"],
        [UP_START, whole[1].replace(b"layout\x01", b"layout\x63"), *whole[2:]],
    ]
    with (
        running_daemon(tmp_path / "daemon") as daemon,
        running_relay(tmp_path / "relay", daemon.endpoint) as relay,
        simulated_ranks(daemon.endpoint, 1, {"job": "direct"}) as direct,
        simulated_ranks(relay.endpoint, 1, {"job": "relayed"}) as relayed,
    ):
        for rank in (direct[0], relayed[0]):
            for frames in damaged:
                rank.send_raw(frames)
            send_steps([rank], 1, 3)
        assert wait_until(lambda: min(daemon.step("direct"), daemon.step("relayed")) == 3, 10)
        refused = daemon.get("/api/v1/daemon")["num_refused"]
        assert sum(refused.values()) == len(damaged), "those that came to it; the relay refused its own"
        assert metric(daemon, "caboose_internal_errors_total") == 0
        assert relay.process.poll() is None
