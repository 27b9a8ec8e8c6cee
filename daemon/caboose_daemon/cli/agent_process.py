"""Runs one of the agent's own commands in another process, and reads its JSON answer."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


class AgentCommandError(Exception):
    """The command gave no answer; the message is one line."""


def ask(module: str, arguments: Sequence[str], *, timeout: float | None = None) -> dict[str, Any]:
    """The answer of `python -m module`, whatever its exit code, if it printed one JSON object.

    What the user's code prints goes to the terminal's standard error.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise AgentCommandError(f"no answer within {timeout:g} s") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise AgentCommandError(f"it ended with exit code {done.returncode}; its reason is above") from None
    if not isinstance(answer, dict):
        raise AgentCommandError("its answer is not one object")
    return answer
