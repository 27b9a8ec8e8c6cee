"""`python -m caboose`: real processes behave as under plain python, and what they train is seen."""

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from caboose_wire import Bye
from support.collector import Collector
from support.norms import grad_norm
from support.processes import clean_environment, torchrun
from support.seeds import first_of

PLAIN = [sys.executable]
WATCHED = [sys.executable, "-m", "caboose"]


def run(command: Sequence[str], directory: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=directory, env=clean_environment(**env), capture_output=True, text=True, timeout=60, check=False
    )


def outcome(command: Sequence[str], directory: Path, **env: str) -> tuple[int, str, str]:
    done = run(command, directory, **env)
    return done.returncode, done.stdout, done.stderr


SCRIPTS = {
    "looks around": """
        import sys
        print(sys.argv, sys.path[0], __name__, __file__, __spec__, __package__, type(__loader__), __annotations__)
        import beside
        print(beside.HERE, sorted(k for k in globals() if k.startswith("__")))
        import __main__
        print(__main__.sys is sys, 'torch' in sys.modules)
        """,
    "reads its arguments": """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int)
        parser.add_argument("rest", nargs="*")
        print(parser.parse_args())
        """,
    "refuses its arguments": """
        import argparse
        argparse.ArgumentParser().parse_args()
        """,
    "looks for us": """
        import sys
        print([type(finder).__name__ for finder in sys.meta_path])
        """,
    "raises": """
        def inner():
            raise ValueError("no such shard")
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("training failed") from error
        """,
    "exits with a code": "import sys; print('bye'); sys.exit(3)",
    "exits with a message": "import sys; sys.exit('out of data')",
    "is interrupted": "raise KeyboardInterrupt",
    "is no python": "for x in",
    "shows its errors itself": """
        import sys
        sys.excepthook = lambda kind, error, trace: print('mine:', error, trace.tb_frame.f_code.co_filename)
        raise ValueError('caught by a hook')
        """,
    "forks": """
        import os
        child = os.fork()
        if child == 0:
            print("child", flush=True)
            os._exit(0)
        print("waited", os.waitpid(child, 0)[1])
        """,
    "spawns": """
        import multiprocessing, sys
        def work(number):
            return number * number, __name__, sys.argv
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1, 2, 3]))
        """,
    "acts at exit": """
        import atexit, pickle
        class Thing:
            pass
        atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Thing()))) is Thing))
        """,
}


def dedent(text: str) -> str:
    lines = text.strip("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines) + "\n"


@pytest.mark.parametrize("name", first_of(name for name in SCRIPTS if name != "looks for us"))
def test_a_script_without_torch_does_what_it_does_under_python(name: str, tmp_path: Path) -> None:
    """Same output, same traceback to the letter, same exit code."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(dedent(SCRIPTS[name]))
    (tmp_path / "scripts" / "beside.py").write_text("HERE = __name__\n")
    arguments = ["./scripts/train.py", "--epochs", "3", "-m", "x", "--help=no"][: 3 if "arguments" in name else 6]
    assert outcome([*WATCHED, *arguments], tmp_path) == outcome([*PLAIN, *arguments], tmp_path)


@pytest.mark.long
@pytest.mark.slow
def test_a_module_a_directory_and_a_missing_file_run_as_under_python(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    look = "import sys; print(sys.argv, __name__, __spec__.name, __package__, sys.path[0])\n"
    (package / "train.py").write_text(look + "raise ValueError('in a module')\n")
    (package / "__main__.py").write_text(look)
    for arguments in (
        ["-m", "package.train", "--epochs", "3"],
        ["-m", "package", "-m"],
        ["package", "--epochs", "3"],
        ["-m", "package.missing"],
        ["missing.py"],
        ["-P", "-m", "package"],
    ):
        flags = [a for a in arguments if a == "-P"]
        rest = arguments[len(flags) :]
        watched = outcome([sys.executable, *flags, "-m", "caboose", *rest], tmp_path)
        assert watched == outcome([*PLAIN, *arguments], tmp_path)


def test_help_is_help_and_a_mistake_is_told(tmp_path: Path) -> None:
    code, out, err = outcome([*WATCHED, "--help"], tmp_path)
    assert (code, err) == (0, "")
    assert "torchrun --nproc-per-node 8 -m caboose train.py" in out
    for arguments, problem in (
        ([], "no script given"),
        (["-m"], "-m needs the name of a module"),
        (["--epochs", "3"], "unknown option --epochs"),
    ):
        code, out, err = outcome([*WATCHED, *arguments], tmp_path)
        assert (code, out) == (2, "")
        assert problem in err.splitlines()[-1]


def test_disabled_means_untouched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(SCRIPTS["looks for us"]))
    plain = outcome([*PLAIN, "train.py"], tmp_path)
    assert outcome([*WATCHED, "train.py"], tmp_path, CABOOSE_DISABLED="1") == plain
    assert "_Finder" in outcome([*WATCHED, "train.py"], tmp_path)[1]


def test_a_wrong_setting_is_told_once_and_the_script_runs_unwatched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(SCRIPTS["looks for us"]))
    plain = outcome([*PLAIN, "train.py"], tmp_path)
    for env in ({"CABOOSE_ENDPOINT": "nowhere"}, {"CABOOSE_DISABLED": "perhaps"}):
        code, out, err = outcome([*WATCHED, "train.py"], tmp_path, **env)
        assert (code, out) == plain[:2]
        assert err.startswith(f"caboose: this run is not watched: {next(iter(env))}")
        assert err.count("\n") == 1


TRAIN = """
    import argparse, json, time
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--attach", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--fail", action="store_true")
    options = parser.parse_args()

    rank = 0
    if options.ddp:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    data = torch.utils.data.TensorDataset(torch.randn(4 * options.steps, 3), torch.randn(4 * options.steps, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=options.workers)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    if options.ddp:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if options.attach:
        import caboose
        monitor = caboose.attach(model, optimizer, job="by-hand")
    losses, norms = [], []
    with torch.no_grad():
        (model.module if options.ddp else model)(torch.randn(1, 3))
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if options.attach:
            monitor.step(loss)
    print(json.dumps({
        "rank": rank, "losses": losses, "norms": norms,
        "call": torch.nn.Module.__call__.__code__.co_name,
        "backward": torch.autograd.backward.__code__.co_filename if options.attach else "",
    }))
    if options.ddp:
        torch.distributed.destroy_process_group()
    time.sleep(0.5)  # real runs are long enough for their reports to leave
    if options.fail:
        loss.detach().backward()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(dedent(TRAIN))
    return path


def printed(text: str) -> list[dict[str, Any]]:
    """The objects in a text; ranks share a pipe, so two of them may stand on one line."""
    found = []
    start = text.find("{")
    while start >= 0:
        value, end = json.JSONDecoder().raw_decode(text, start)
        found.append(value)
        start = text.find("{", end)
    return found


@pytest.mark.long
@pytest.mark.slow
def test_what_a_script_trains_is_seen_without_a_line_changed(script: Path, listening: Collector) -> None:
    """And nothing of it shows: same losses bit by bit, same output, same traceback through what stands in for torch."""
    arguments = ["train.py", "--steps", "6", "--workers", "1", "--fail"]
    with ThreadPoolExecutor() as pool:
        plain = pool.submit(outcome, [*PLAIN, *arguments], script.parent)
        watched = pool.submit(
            outcome,
            [*WATCHED, *arguments],
            script.parent,
            CABOOSE_ENDPOINT=listening.endpoint,
            CABOOSE_SAMPLE_EVERY="2",
            CABOOSE_OVERHEAD_BUDGET="1.0",  # a busy machine makes the agent look dear, and norms would be thinned
        )
    assert watched.result() == plain.result()
    code, out, _ = watched.result()
    assert code == 1
    (saw,) = printed(out)
    assert saw["call"] == "_wrapped_call_impl", "the search for the model has left no trace"
    (bye,) = listening.wait_for(Bye)
    assert bye.error.startswith("RuntimeError: element 0 of tensors does not require grad")
    (hello,) = listening.hellos
    assert hello.job.startswith("train@")
    assert (hello.wrapper, hello.rank, hello.world, hello.start_step) == ("Sequential", 0, 1, 0)
    assert [layer.name for layer in hello.layers] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [r.step for r in listening.reports] == [1, 2, 3, 4, 5, 6]
    assert [r.loss for r in listening.reports] == pytest.approx(saw["losses"], rel=1e-6)
    first, *others = (grad_norm(r) for r in listening.reports)
    assert first is None, "it may be clipped already"
    assert others == pytest.approx(saw["norms"][1:], rel=1e-5)
    assert all(r.lr == (0.1,) for r in listening.reports)


@pytest.mark.slow
def test_two_ranks_under_torchrun_are_seen_with_their_wrapper(script: Path, listening: Collector) -> None:
    command = torchrun("caboose", str(script), "--ddp", "--steps", "5")
    done = run(command, script.parent, CABOOSE_ENDPOINT=listening.endpoint, CABOOSE_JOB="pair")
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye, 2)
    assert sorted((h.job, h.rank, h.world, h.wrapper) for h in listening.hellos) == [
        ("pair", 0, 2, "DistributedDataParallel"),
        ("pair", 1, 2, "DistributedDataParallel"),
    ]
    saw = {each["rank"]: each for each in printed(done.stdout)}
    reported = sorted(r.loss for r in listening.reports if r.loss is not None)
    assert reported == pytest.approx(sorted(saw[0]["losses"] + saw[1]["losses"]), rel=1e-6)
    assert sorted(r.step for r in listening.reports) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.long
@pytest.mark.slow
def test_a_script_that_attaches_itself_is_attached_once(script: Path, listening: Collector) -> None:
    done = run([*WATCHED, "train.py", "--attach"], script.parent, CABOOSE_ENDPOINT=listening.endpoint)
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye)
    assert [h.job for h in listening.hellos] == ["by-hand"]
    assert [r.step for r in listening.reports] == [1, 2, 3, 4, 5]
    assert "losses.py" not in printed(done.stdout)[0]["backward"], "the automatic one has gone"


def test_that_validation_is_not_seen_is_stated(script: Path, listening: Collector) -> None:
    done = run([*WATCHED, "train.py"], script.parent, CABOOSE_ENDPOINT=listening.endpoint)
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye)
    assert "validation" in listening.hellos[0].blind


def test_torchruns_error_file_has_the_scripts_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def inner():\n    raise ValueError('no such shard')\n\ninner()\n")
    error_file = tmp_path / "error.json"
    done = run([*WATCHED, "fails.py"], tmp_path, TORCHELASTIC_ERROR_FILE=str(error_file))
    assert done.returncode == 1
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "ValueError: no such shard"
    assert 'fails.py", line 4' in message["extraInfo"]["py_callstack"]
    assert "caboose" not in message["extraInfo"]["py_callstack"]


@pytest.mark.parametrize(("code", "is_failure"), [("3", True), ("'no data'", True), ("0", False), ("", False)])
def test_an_exit_that_is_a_failure_is_in_torchruns_error_file_too(tmp_path: Path, code: str, is_failure: bool) -> None:
    (tmp_path / "leaves.py").write_text(f"import sys\nsys.exit({code})\n")
    error_file = tmp_path / "error.json"
    run([*WATCHED, "leaves.py"], tmp_path, TORCHELASTIC_ERROR_FILE=str(error_file))
    assert error_file.exists() is is_failure
    if is_failure:
        message = json.loads(error_file.read_text())["message"]
        assert message["message"] == f"SystemExit: {code.strip(chr(39))}"
        assert 'leaves.py", line 2' in message["extraInfo"]["py_callstack"]


def test_an_error_file_that_the_script_has_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("open('error.json', 'w').write('mine')\nraise ValueError\n")
    run([*WATCHED, "fails.py"], tmp_path, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    assert (tmp_path / "error.json").read_text() == "mine"


def test_an_exit_code_other_than_0_is_a_failure_of_the_rank(script: Path, listening: Collector) -> None:
    with script.open("a") as file:
        file.write("\nimport sys; sys.exit(3)\n")
    done = run([*WATCHED, "train.py"], script.parent, CABOOSE_ENDPOINT=listening.endpoint)
    assert done.returncode == 3, done.stderr
    (bye,) = listening.wait_for(Bye)
    assert bye.error == "SystemExit: 3"


UNSEEN = {
    "made no torch.optim.Optimizer": """
        import torch
        weight = torch.zeros(3, requires_grad=True)
        (weight - 1).pow(2).sum().backward()
        """,
    "no optimizer took a step": """
        import torch
        torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
        """,
    "no module holds the parameters": """
        import torch
        weight = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight - 1).pow(2).sum().backward()
        optimizer.step()
        """,
}


@pytest.mark.parametrize("why", first_of(UNSEEN))
def test_a_script_in_which_nothing_could_be_watched_is_told_why_in_one_line(why: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(UNSEEN[why]))
    done = run([*WATCHED, "train.py"], tmp_path)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("caboose: nothing was watched: ")
    assert why in line


def test_of_several_ranks_one_says_that_nothing_could_be_watched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(UNSEEN["made no torch.optim.Optimizer"]))
    errors = {rank: run([*WATCHED, "train.py"], tmp_path, RANK=rank, WORLD_SIZE="2").stderr for rank in ("0", "1")}
    assert "nothing was watched" in errors["0"]
    assert errors["1"] == ""


def test_a_script_that_fails_before_its_first_step_shows_its_own_error_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nraise ValueError('no data')\n")
    assert outcome([*WATCHED, "train.py"], tmp_path) == outcome([*PLAIN, "train.py"], tmp_path)
