"""Ray Train: attached in the function of each worker, all workers are the ranks of one job."""

import subprocess
import sys
from pathlib import Path

import pytest

from caboose_wire import Bye
from support.collector import Collector
from support.processes import clean_environment

pytest.importorskip("ray.train", reason="its workers are the subject; it is no development dependency")

pytestmark = [pytest.mark.slow, pytest.mark.long]

SCRIPT = """
import os
import torch, ray, ray.train
from ray.train.torch import TorchConfig, TorchTrainer

def train_loop_per_worker(config):
    import caboose
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = caboose.attach(model, optimizer, job="my-run")
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 4, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    monitor.close()

variables = {"CABOOSE_ENDPOINT": os.environ["CABOOSE_ENDPOINT"]}
ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": variables})
TorchTrainer(
    train_loop_per_worker,
    scaling_config=ray.train.ScalingConfig(num_workers=2),
    torch_config=TorchConfig(backend="gloo"),
    run_config=ray.train.RunConfig(name="my-run", storage_path=os.path.abspath("store")),
).fit()
"""


def test_every_worker_is_a_rank_of_the_job(tmp_path: Path, listening: Collector) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint, RAY_USAGE_STATS_ENABLED="0")
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye, 2)
    assert sorted((hello.job, hello.rank, hello.world, hello.wrapper) for hello in listening.hellos) == [
        ("my-run", rank, 2, "DistributedDataParallel") for rank in (0, 1)
    ]
    assert len({hello.launch for hello in listening.hellos}) == 1
    assert sorted(report.step for report in listening.reports) == sorted([1, 2, 3, 4, 5] * 2)
