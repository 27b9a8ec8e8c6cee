"""Who needs what: the daemon and `import caboose` work without torch, and the command says what it misses."""

import subprocess
import sys

import pytest

from caboose_daemon.entry import NEEDED
from support.processes import clean_environment

MAIN = "from caboose_daemon.cli import caboose; caboose"
ALL_COMMANDS = "from caboose_daemon.cli import NAMES, command; [command(name) for name in NAMES]"


def run_without(*modules: str, code: str) -> "subprocess.CompletedProcess[str]":
    """Runs code in an interpreter in which these modules cannot be imported."""
    absent = "".join(f"sys.modules[{module!r}] = None\n" for module in modules)
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{absent}{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(),
    )


@pytest.mark.parametrize("code", [ALL_COMMANDS, "import caboose", "import caboose_wire"])
def test_imports_without_torch(code: str) -> None:
    ended = run_without("torch", code=code)

    assert ended.returncode == 0, ended.stderr


def test_importing_daemon_and_agent_does_not_pull_torch_in() -> None:
    code = f"import caboose; {ALL_COMMANDS}; assert 'torch' not in sys.modules"

    assert run_without(code=code).returncode == 0


@pytest.mark.parametrize("name", ["keys", "jobs", "diagnose", "rollback", "top"])
def test_a_command_does_not_wait_for_a_web_server_or_plots_that_it_has_no_use_for(name: str) -> None:
    ended = run_without(
        "uvicorn", "starlette", "plotly", "markdown_it", code=f"{MAIN}(['{name}', '--help'], prog_name='caboose')"
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"Usage: caboose {name}")


def test_the_wire_needs_neither_end_nor_a_socket() -> None:
    ended = run_without("zmq", "caboose", "caboose_daemon", "torch", code="import caboose_wire")

    assert ended.returncode == 0, ended.stderr


def test_the_agent_needs_nothing_of_the_daemon() -> None:
    assert run_without("caboose_daemon", *NEEDED, code="import caboose").returncode == 0


@pytest.mark.parametrize("module", ["click", "uvicorn", "markdown_it"])
def test_without_the_daemons_extra_the_command_says_how_to_install_it(module: str) -> None:
    ended = run_without(module, code="from caboose_daemon.entry import main; main()")

    assert ended.returncode == 2
    assert ended.stderr == (
        f"caboose: {module} is missing; install the daemon's extra:\n    pip install 'caboose[daemon]'\n"
    )


def test_any_other_missing_module_is_not_blamed_on_the_extra() -> None:
    ended = run_without("caboose_wire", code="from caboose_daemon.entry import main; main()")

    assert ended.returncode == 1
    assert "ModuleNotFoundError" in ended.stderr


def test_a_production_rank_loads_neither_plots_nor_the_tools_of_before_the_run() -> None:
    code = (
        "import caboose\n"
        "found = [name for name in sys.modules if name.startswith(('matplotlib', 'plotly', 'caboose_plots', "
        "'caboose.trials', 'caboose.checklist', 'caboose.hunting'))]\n"
        "assert not found, found"
    )
    ended = run_without(code=code)

    assert ended.returncode == 0, ended.stderr
