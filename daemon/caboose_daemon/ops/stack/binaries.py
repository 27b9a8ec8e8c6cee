"""Finds Prometheus and Alertmanager on this machine, or says how to get them."""

import os
import shutil

NAMES = {
    "prometheus": ("prometheus",),
    "alertmanager": ("alertmanager", "prometheus-alertmanager"),
}
INSTALL = {
    "prometheus": "apt-get install prometheus, or https://prometheus.io/download/",
    "alertmanager": "apt-get install prometheus-alertmanager, or https://prometheus.io/download/",
}


class BinaryError(RuntimeError):
    """A program is missing; the message says how to install it."""


def find(program: str) -> str:
    """Where a program is; the variables CABOOSE_PROMETHEUS and CABOOSE_ALERTMANAGER name another one."""
    variable = f"CABOOSE_{program.upper()}"
    given = os.environ.get(variable)
    for name in (given,) if given else NAMES[program]:
        found = shutil.which(name)
        if found is not None:
            return found
    if given:
        raise BinaryError(f"{variable}={given!r} is not a program that can be run")
    raise BinaryError(f"{program} is not on the PATH: {INSTALL[program]} (or set {variable} to where it is)")
