"""The examples run as their first lines say, and the daemon sees each of them."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import DaemonProcess, clean_environment, running_daemon, wait_until

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
TORCHRUN += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--rollback", "auto") as process:
        yield process


def run(daemon: DaemonProcess, job: str, directory: Path, command: list[str]) -> str:
    """Runs it to its end; returns what it printed."""
    env = clean_environment(CABOOSE_ENDPOINT=daemon.endpoint, CABOOSE_JOB=job, OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def assert_seen(daemon: DaemonProcess, job: str, *, step: int, world: int = 1) -> None:
    def has_ended() -> bool:
        found = daemon.get(f"/api/v1/jobs/{job}")
        return bool(found["state"] == "ended" and found["step"] == step)

    assert wait_until(has_ended, 10), daemon.get(f"/api/v1/jobs/{job}")
    assert daemon.get(f"/api/v1/jobs/{job}")["world"] == world


def test_every_example_is_short_and_has_a_page_of_its_own_in_the_docs() -> None:
    docs = EXAMPLES.parent / "docs"
    contents = (docs / "examples.md").read_text()
    pages = {path.stem: path.read_text() for path in (docs / "examples").glob("*.md")}
    for path in EXAMPLES.iterdir():
        if path.is_file():
            name = "no_code" if path.name == "train.py" else path.stem
            assert len(path.read_text().splitlines()) < 80, path.name
            assert f"(../../examples/{path.name})" in pages[name]
            assert f"(examples/{name}.md)" in contents
    for page in pages.values():
        for link in re.findall(r"\]\(([^)#]+)", page):
            assert (docs / "examples" / link).exists(), link


def test_a_plain_loop(daemon: DaemonProcess, tmp_path: Path) -> None:
    printed = run(daemon, "plain", tmp_path, [sys.executable, str(EXAMPLES / "plain_loop.py"), "--steps", "100"])
    assert "step 100  loss" in printed
    assert_seen(daemon, "plain", step=100)


def test_ddp_and_again_from_its_checkpoint(daemon: DaemonProcess, tmp_path: Path) -> None:
    command = [*TORCHRUN, str(EXAMPLES / "ddp.py"), "--checkpoints", str(tmp_path / "kept")]
    run(daemon, "ddp", tmp_path, [*command, "--steps", "120"])
    assert_seen(daemon, "ddp", step=120, world=2)
    assert (tmp_path / "kept" / "step-100").is_dir()
    printed = run(daemon, "ddp", tmp_path, [*command, "--steps", "140"])
    assert "step 140" in printed
    assert_seen(daemon, "ddp", step=140, world=2)
    assert daemon.get("/api/v1/jobs/ddp")["attempt"] == 2


def test_fsdp2(daemon: DaemonProcess, tmp_path: Path) -> None:
    printed = run(daemon, "fsdp2", tmp_path, [*TORCHRUN, str(EXAMPLES / "fsdp2.py"), "--steps", "50"])
    assert "step 50  loss" in printed
    assert_seen(daemon, "fsdp2", step=50, world=2)


@pytest.mark.parametrize("name", ["hf_trainer", "lightning_module"])
def test_a_framework(daemon: DaemonProcess, tmp_path: Path, name: str) -> None:
    run(daemon, name, tmp_path, [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", "30"])
    assert_seen(daemon, name, step=30)


def test_accelerate(daemon: DaemonProcess, tmp_path: Path) -> None:
    printed = run(daemon, "accelerate", tmp_path, [*TORCHRUN, str(EXAMPLES / "accelerate_loop.py"), "--steps", "30"])
    assert "step 30  loss" in printed
    assert_seen(daemon, "accelerate", step=30, world=2)


def test_fabric_with_its_own_launcher(daemon: DaemonProcess, tmp_path: Path) -> None:
    run(
        daemon,
        "fabric",
        tmp_path,
        [sys.executable, str(EXAMPLES / "fabric_loop.py"), "--steps", "30", "--devices", "2"],
    )
    assert_seen(daemon, "fabric", step=30, world=2)


@pytest.mark.parametrize("stage", ["0", "3"])
def test_deepspeed(daemon: DaemonProcess, tmp_path: Path, stage: str) -> None:
    pytest.importorskip("deepspeed", reason="its engine is the subject; it is no development dependency")
    job = f"deepspeed-{stage}"
    command = [*TORCHRUN, str(EXAMPLES / "deepspeed_zero.py"), "--steps", "10", "--stage", stage]
    assert "step 10  loss" in run(daemon, job, tmp_path, command)
    assert_seen(daemon, job, step=10, world=2)


def test_torchtitan(daemon: DaemonProcess, tmp_path: Path) -> None:
    pytest.importorskip("torchtitan", reason="its optimizers are the subject; it is no development dependency")
    printed = run(daemon, "titan", tmp_path, [*TORCHRUN, str(EXAMPLES / "torchtitan_parts.py"), "--steps", "20"])
    assert "step 20  loss" in printed
    assert_seen(daemon, "titan", step=20, world=2)


def test_ray_train(daemon: DaemonProcess, tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="its workers are the subject; it is no development dependency")
    run(daemon, "ray", tmp_path, [sys.executable, str(EXAMPLES / "ray_train.py"), "--steps", "20"])
    assert_seen(daemon, "ray", step=20, world=2)


def test_no_code(daemon: DaemonProcess, tmp_path: Path) -> None:
    env = ["env", f"PYTHON={sys.executable}"]

    printed = run(daemon, "no-code", tmp_path, [*env, str(EXAMPLES / "no_code.sh")])

    assert "step 300  loss" in printed
    assert_seen(daemon, "no-code", step=300)
    losses = [row["loss"] for row in daemon.get("/api/v1/jobs/no-code/series?points=300")["steps"]]
    assert losses[-1] < 0.6 * losses[0], "it learns"


def test_no_code_for_a_script_of_one_s_own(daemon: DaemonProcess, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text((EXAMPLES / "train.py").read_text())
    env = ["env", f"PYTHON={sys.executable}"]

    run(daemon, "mine", tmp_path, [*env, str(EXAMPLES / "no_code.sh"), str(script), "--steps", "25"])

    assert_seen(daemon, "mine", step=25)
