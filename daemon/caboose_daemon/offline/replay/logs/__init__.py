"""Training logs as people have them on disk, each read into one `Log`."""

from caboose_daemon.offline.replay.logs.log import Column, Log, LogError
from caboose_daemon.offline.replay.logs.read import read_log, read_logs

__all__ = ["Column", "Log", "LogError", "read_log", "read_logs"]
