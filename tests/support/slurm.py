"""A real Slurm of one node on loopback: munged, slurmctld and slurmd as processes of the test, on ports of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.processes import clean_environment, end, wait_until

NODE = "localhost"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
CONFIGURATION = """\
ClusterName=caboose
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
KillWait=10
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty if there can."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Slurm:
    """The commands of a running cluster."""

    def __init__(self, configuration: Path) -> None:
        self.environment = clean_environment(SLURM_CONF=str(configuration))

    def run(self, *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**self.environment, **(env or {})}, cwd=cwd
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def job(self, number: str) -> dict[str, str]:
        """The fields of a job, such as JobState and ExitCode."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: str, *states: str, timeout: float = 60) -> dict[str, str]:
        """The job once it is in one of these states."""
        assert wait_until(lambda: self.job(number)["JobState"] in states, timeout), self.job(number)
        return self.job(number)


@contextlib.contextmanager
def running_slurm(directory: Path) -> Iterator[Slurm]:
    """A cluster whose node is idle when the block begins, and that is gone when it ends."""
    run = directory / "run"
    for each in (run, run / "state", run / "spool"):
        each.mkdir(mode=0o755)
    key = run / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    configuration = directory / "slurm.conf"
    values = {
        "cpus": os.cpu_count(),
        "controller_port": free_port(),
        "node_port": free_port(),
        "host": socket.gethostname().split(".")[0],
    }
    configuration.write_text(CONFIGURATION.format(run=run, node=NODE, **values))
    slurm = Slurm(configuration)
    munge = ["munged", "--foreground", "--force", f"--socket={run}/munge.socket", f"--key-file={key}"]
    munge += [f"--pid-file={run}/munged.pid", f"--seed-file={run}/munge.seed", f"--log-file={run}/munged.log"]
    commands = (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", NODE])
    environment = {**slurm.environment, "PATH": f"{slurm.environment['PATH']}:/usr/sbin"}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (run / f"{command[0]}.out").open("wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
            time.sleep(0.5)
        assert wait_until(lambda: "idle" in _node_state(slurm), 30), (run / "slurmctld.out").read_text()[-3000:]
        yield slurm
    finally:
        for process in reversed(processes):
            end(process)


def _node_state(slurm: Slurm) -> str:
    try:
        return slurm.run("sinfo", "--noheader", "--format=%t")
    except AssertionError:  # the controller does not answer yet
        return ""
