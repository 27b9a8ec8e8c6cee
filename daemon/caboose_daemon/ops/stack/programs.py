"""Finds the programs of a stack: on the PATH, or where a variable names them."""

import os
import shutil

PROGRAMS = {
    "prometheus": ("prometheus",),
    "alertmanager": ("alertmanager", "prometheus-alertmanager"),
}
"""The names of each program on the PATH; distributions differ."""
INSTALL = {
    "prometheus": "apt-get install prometheus, or https://prometheus.io/download/",
    "alertmanager": "apt-get install prometheus-alertmanager, or https://prometheus.io/download/",
}


class BinaryError(RuntimeError):
    """A program is missing; the message says how to install it."""


def find_program(program: str) -> str:
    """The path of a program; CABOOSE_PROMETHEUS and CABOOSE_ALERTMANAGER override the PATH."""
    variable = f"CABOOSE_{program.upper()}"
    given = os.environ.get(variable)
    for name in (given,) if given else PROGRAMS[program]:
        found = shutil.which(name)
        if found is not None:
            return found
    if given:
        raise BinaryError(f"{variable}={given!r} is not an executable program")
    raise BinaryError(f"{program} is not on the PATH: {INSTALL[program]} (or set {variable} to its path)")
