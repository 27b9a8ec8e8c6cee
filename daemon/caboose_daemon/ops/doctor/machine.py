"""Checks without a daemon: the configuration, the ports, the data directory."""

import os
import socket
from pathlib import Path

from caboose_daemon.config import Config, ConfigError, load
from caboose_daemon.ops.doctor.check import DoctorCheck
from caboose_wire.endpoints import split_http, split_tcp


def check_config(path: Path | None) -> tuple[DoctorCheck, Config]:
    """The configuration file; the defaults if there is none, or it is invalid."""
    if path is None:
        return DoctorCheck("configuration", "ok", "no caboose.toml here; defaults apply"), Config()
    try:
        return DoctorCheck("configuration", "ok", f"{path} is valid"), load(path)
    except ConfigError as error:
        return DoctorCheck(
            "configuration", "cross", str(error), f"correct {path}: the daemon does not start with it"
        ), Config()


def check_ports(config: Config) -> DoctorCheck:
    """Whether a daemon that starts now can bind its ports."""
    taken = []
    for flag, (host, port) in (
        ("--listen", split_tcp(config.daemon.listen)),
        ("--http", split_http(config.daemon.http)),
    ):
        problem = _bind_problem(host.strip("[]"), port)
        if problem:
            taken.append((flag, port, problem))
    if not taken:
        ports = f"{split_tcp(config.daemon.listen)[1]} and {split_http(config.daemon.http)[1]}"
        return DoctorCheck("ports", "ok", f"{ports} are free")
    text = "; ".join(f"{flag} {port}: {problem}" for flag, port, problem in taken)
    fix = f"`ss -ltnp 'sport = :{taken[0][1]}'` shows the process; or give the daemon another port: {taken[0][0]} ...:0"
    return DoctorCheck("ports", "cross", text, fix)


def _bind_problem(host: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_data_dir(config: Config) -> DoctorCheck:
    """Whether a daemon that starts now can write its journal."""
    path = Path(os.environ.get("CABOOSE_DATA_DIR") or config.daemon.data_dir).expanduser().absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir():
        return DoctorCheck("journal", "cross", f"{there} is a file", "choose another --data-dir")
    if not os.access(there, os.W_OK | os.X_OK):
        fix = f"sudo chown {os.getuid()} {there}, or choose another --data-dir"
        return DoctorCheck("journal", "cross", f"{there} is not writable for uid {os.getuid()}", fix)
    return DoctorCheck("journal", "ok", f"{path} is writable")
