"""All ranks get one answer at one step, whoever is late; where values differ, all of them go on."""

import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import HashStore

from caboose.early_stopping.stopper import Stopper
from support.processes import clean_environment, torchrun

RANKS = """
import json, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import caboose

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
monitor = caboose.attach(model, optimizer, job="stopping")
monitor.early_stopping(patience=3)
curve = [3.0, 2.0, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0]
seen = []
for step in range(40):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 2)).square().mean()
    loss.backward()
    optimizer.step()
    monitor.step(loss)
    if step % 5 == 4:
        if rank == world - 1:
            time.sleep(0.3)  # it evaluates longer than the others
        value = curve[step // 5] + (0.001 * rank if "differing" in sys.argv else 0.0)
        monitor.validation(value)
    seen.append([step, monitor.should_stop, monitor.is_best])
    if monitor.should_stop:
        break
Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps(seen))
monitor.close()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_stop_at_one_step_though_one_is_late(tmp_path: Path, ranks: int) -> None:
    seen = trained(tmp_path, ranks)
    assert all(each == seen[0] for each in seen), "every answer at every step"
    assert seen[0][-1][:2] == [29, True], "the third validation after the best"
    assert [step for step, _, is_best in seen[0] if is_best][0::5] == [4, 9, 14]


@pytest.mark.slow
def test_ranks_with_values_of_their_own_never_stop_and_are_told_once(tmp_path: Path) -> None:
    seen = trained(tmp_path, 2, "differing")
    assert all(len(each) == 40 for each in seen)
    assert not any(answer for each in seen for _, stop, best in each for answer in (stop, best))
    log = (tmp_path / "log").read_text()
    assert log.count("monitor.should_stop stays False") == 1
    assert "rank 0 reported 3 and rank 1 3.001" in log


def trained(directory: Path, ranks: int, *options: str) -> list[list[list[object]]]:
    script = directory / "ranks.py"
    script.write_text(RANKS)
    environment = clean_environment(CABOOSE_ENDPOINT="tcp://127.0.0.1:9", OMP_NUM_THREADS="1")
    command = torchrun(script, str(directory / "seen"), *options, ranks=ranks)
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment, check=False)
    (directory / "log").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    return [json.loads((directory / f"seen.{rank}").read_text()) for rank in range(ranks)]


# One rank a thread, and a real store


def answers(world: int, values: list[list[float | None]], late: int = -1, seconds: float = 10.0) -> list[list[bool]]:
    """Each rank's answers; None where a rank reports no validation."""
    store = HashStore()
    barrier = threading.Barrier(world)

    def run(rank: int) -> list[bool]:
        stopper = Stopper(rank, world, lambda: store)
        stopper.configure(2, seconds=seconds)
        found = []
        for value in values[rank]:
            if rank == late:
                time.sleep(0.05)
            if value is not None:
                stopper.note({"loss": value})
            found.append(stopper.should_stop)
        barrier.wait()
        return found

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("late", [0, -1])
def test_the_same_values_give_the_same_answers(world: int, late: int) -> None:
    found = answers(world, [[2.0, 1.0, 1.1, 1.2, 1.3]] * world, late=late % world)
    assert found == [[False, False, False, True, True]] * world


@pytest.mark.parametrize("world", [2, 4])
def test_one_differing_value_keeps_all_ranks_going(world: int) -> None:
    values: list[list[float | None]] = [[2.0, 1.0, 1.1, 1.2, 1.3] for _ in range(world)]
    values[-1][1] = 1.0000001
    assert answers(world, values) == [[False] * 5] * world


def test_a_rank_that_never_reports_keeps_all_ranks_going() -> None:
    values: list[list[float | None]] = [[2.0, 1.0, 1.1, 1.2], [None] * 4]
    began = time.monotonic()
    assert answers(2, values, seconds=0.3) == [[False] * 4] * 2
    assert time.monotonic() - began < 2.0, "it is waited for once"


def test_validations_from_before_the_first_answer_count(caplog: pytest.LogCaptureFixture) -> None:
    stopper = Stopper(0, 1)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        stopper.note({"loss": value, "accuracy": 0.5})
    assert stopper.should_stop
    assert stopper.best == 1.0
    assert not caplog.records


def test_without_a_process_group_several_ranks_do_not_stop(caplog: pytest.LogCaptureFixture) -> None:
    stopper = Stopper(0, 2)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        stopper.note({"loss": value})
    assert not stopper.should_stop
    assert not stopper.should_stop
    (record,) = caplog.records
    assert "2 ranks need torch.distributed to agree" in record.message


@pytest.mark.parametrize("options", [{"patience": 0}, {"mode": "lowest"}, {"min_delta": -1.0}])
def test_a_wrong_setting_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="early_stopping"):
        Stopper(0, 1).configure(**options)  # type: ignore[arg-type]
