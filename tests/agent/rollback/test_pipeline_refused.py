"""A model that a pipeline runs is refused by `auto`, by whatever part of it attach is given."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

import caboose
from support.collector import Collector

REFUSED = "pipeline parallel is not supported"


@pytest.fixture
def auto(attach: Callable[..., caboose.Monitor], listening: Collector) -> Callable[..., caboose.Monitor]:
    def begin(model: torch.nn.Module, **options: Any) -> caboose.Monitor:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return attach(model, optimizer, **{"endpoint": listening.endpoint, "rollback": "auto", **options})

    return begin


def a_stage(module: torch.nn.Module) -> PipelineStage:
    """The first of two, both on this rank."""
    return PipelineStage(module, 0, 2, torch.device("cpu"))


def wrapped(module: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(module)


GIVEN: dict[str, Callable[[torch.nn.Module], tuple[torch.nn.Module, torch.nn.Module]]] = {
    "the stage's module": lambda network: (network, network),
    "a module that is made of the stages'": lambda network: (network, torch.nn.ModuleList([network])),
    "a wrapper of the stage's": lambda network: (network, wrapped(network)),
    "what the stage has wrapped": lambda network: (wrapped(network), network),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_stage_of_a_pipeline(
    process_group: None, auto: Callable[..., caboose.Monitor], network: torch.nn.Module, name: str
) -> None:
    held, given = GIVEN[name](network)
    stage = a_stage(held)
    with pytest.raises(ValueError, match=REFUSED):
        auto(given)
    assert stage.submod is held
    auto(given, rollback="advise")


def test_a_stage_of_another_model_is_no_objection(
    process_group: None, auto: Callable[..., caboose.Monitor], network: torch.nn.Module
) -> None:
    stage = a_stage(torch.nn.Linear(2, 2))
    auto(network)
    del stage


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """The first of four ranks, the others being thought of: their meshes and shards are real, their talk is not."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["pp", "pipeline"])
def test_shards_that_know_only_their_part_of_a_mesh_of_stages(
    four_ranks: None, auto: Callable[..., caboose.Monitor], network: torch.nn.Module, name: str
) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=(name, "dp"))
    fully_shard(network, mesh=mesh["dp"])
    assert network[0].weight.device_mesh.mesh_dim_names == ("dp",)  # type: ignore[index]  # a Sequential
    with pytest.raises(ValueError, match=REFUSED):
        auto(network)


def test_a_mesh_with_a_single_stage_is_no_pipeline(
    process_group: None, auto: Callable[..., caboose.Monitor], network: torch.nn.Module
) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("pp", "dp"))
    fully_shard(network, mesh=mesh["dp"])
    auto(network)


@pytest.mark.slow
@pytest.mark.long
def test_a_run_without_a_pipeline_imports_nothing_of_it() -> None:
    program = """
import sys, torch, caboose
model = torch.nn.Linear(2, 2)
monitor = caboose.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), rollback="auto", job="train")
print("torch.distributed.pipelining" in sys.modules)
monitor.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
