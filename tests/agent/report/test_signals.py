"""A process that a signal ends sends its Bye, and ends as it would without the agent."""

import signal
import subprocess
import sys
import time

import pytest

from caboose_wire import Bye
from support.collector import collector
from support.processes import clean_environment, end
from support.training import JOBS

pytestmark = pytest.mark.slow

TERM = -signal.SIGTERM
CASES = {
    "collective": (signal.SIGTERM, TERM, "SIGTERM"),
    "python": (signal.SIGTERM, TERM, "SIGTERM"),
    "hang-up": (signal.SIGHUP, -signal.SIGHUP, "SIGHUP"),
    "interrupted": (signal.SIGINT, -signal.SIGINT, "SIGINT"),
    "handled": (signal.SIGTERM, 7, "SIGTERM"),
    "handled later": (signal.SIGTERM, 7, "SIGTERM"),
    "handled by keyword": (signal.SIGTERM, 7, "SIGTERM"),
    "restored": (signal.SIGTERM, TERM, "SIGTERM"),
    "own descriptor": (signal.SIGTERM, TERM, None),
    "descriptor given back": (signal.SIGTERM, TERM, "SIGTERM"),
    "asyncio": (signal.SIGTERM, 7, ""),
    "waited for": (signal.SIGTERM, 9, ""),
    "a handler below Python": (signal.SIGTERM, TERM, "SIGTERM"),
    "ignored": (signal.SIGTERM, 0, ""),
    "child": (signal.SIGTERM, TERM, "SIGTERM"),
}
"""Where the process is: the signal, the code that its parent sees, and the signal in its Bye (None: no Bye is due)."""


@pytest.mark.parametrize("place", CASES)
def test_a_signal_is_named_in_the_bye_and_ends_the_process_as_without_the_agent(place: str) -> None:
    number, code, name = CASES[place]
    with collector() as listening:
        process = subprocess.Popen(
            [sys.executable, str(JOBS / "ending.py"), listening.endpoint, place],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("here"), process.stderr and process.stderr.read()
            began = time.monotonic()
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
            seconds = time.monotonic() - began
        finally:
            end(process)
        assert process.returncode == code, errors
        if code == -number and number != signal.SIGINT:  # Python takes its time to end in the other cases
            assert seconds < 1.0
        if name is not None:
            (bye,) = listening.wait_for(Bye)
            assert (bye.signal, bye.step) == (name, 3)
    assert "Traceback" not in errors or place == "interrupted"


HANDLES_AND_RESTORES = """
import signal, torch, caboose

came = []
model = torch.nn.Linear(4, 4)
monitor = caboose.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), job="ending")
for _ in range(3000):
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
assert len(came) == 3000
monitor.close()
"""


def test_a_signal_that_a_script_handles_ends_nothing_though_its_handler_is_gone_at_once() -> None:
    command = [sys.executable, "-c", HANDLES_AND_RESTORES]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
