"""Activations inside compiled graphs: seen on sampled steps, and the run is the same to the last bit."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import caboose
from caboose.governor import Cadences, Governor
from caboose.observe import compiled
from caboose_wire import StepReport
from support.collector import Collector
from support.compiled_runs import (
    ASKED,
    EVERY,
    STEPS,
    Attach,
    Compile,
    Net,
    blocks,
    blocks_in_place,
    in_place,
    same,
    train,
    watched,
    whole,
)
from support.processes import clean_environment, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert compiled.switch.reader is None


def test_fifty_steps_are_the_same_to_the_last_bit_and_show_what_eager_ones_show(
    attach: Attach, listening: Collector
) -> None:
    bare = train(whole(Net()))
    run = watched(attach, listening, whole(Net()))
    assert same(run, bare)
    assert (run.num_graphs, run.num_breaks) == (bare.num_graphs, 0)
    assert run.hello is not None
    assert "activations" in run.hello.visible
    assert not run.hello.blind.keys() & {"activations", "some_activations"}
    eager = watched(attach, listening, Net())
    assert len(run.reports) == STEPS // EVERY
    assert run.reports[1] == eager.reports[1]
    assert all(list(run.reports[step]) == list(eager.reports[step]) for step in eager.reports)


MODELS: dict[str, tuple[Compile, bool]] = {
    "whole, checkpointed": (whole, True),
    "in place": (in_place, False),
    "blocks in place": (blocks_in_place, False),
    "blocks": (blocks, False),
    "blocks, checkpointed": (blocks, True),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("what", MODELS)
def test_parts_and_checkpoints_are_seen_as_without_compilation(what: str, attach: Attach, listening: Collector) -> None:
    make, is_checkpointed = MODELS[what]
    bare = train(make(Net(is_checkpointed)))
    run = watched(attach, listening, make(Net(is_checkpointed)))
    assert same(run, bare)
    assert (run.num_graphs, run.num_breaks) == (bare.num_graphs, bare.num_breaks)
    eager = watched(attach, listening, Net(is_checkpointed))
    names = set(eager.reports[1])
    if "blocks" in what:
        assert names == set(run.reports[1])
    assert run.reports[1] == eager.reports[1]
    assert run.hello is not None
    assert not run.hello.blind.keys() & {"activations", "some_activations"}


@pytest.mark.slow
@pytest.mark.long
def test_it_is_off_unless_asked_for_and_the_reason_names_the_switch(attach: Attach, listening: Collector) -> None:
    run = watched(attach, listening, whole(Net()), steps=8, sampling=caboose.Sampling(2, overhead_budget=1.0))
    assert run.hello is not None
    assert "CABOOSE_SAMPLE_COMPILED" in run.hello.blind["activations"]
    assert not run.reports


@pytest.mark.slow
@pytest.mark.long
def test_restored_weights_and_another_cadence_change_nothing(attach: Attach, listening: Collector) -> None:
    def each(model: nn.Module) -> Callable[[int, caboose.Monitor | None], None]:
        kept: dict[str, torch.Tensor] = {}

        def do(step: int, monitor: caboose.Monitor | None) -> None:
            if step == 7:
                kept.update({name: value.clone() for name, value in model.state_dict().items()})
            if step == 20:
                model.load_state_dict(kept)
            if step == 12 and monitor is not None:
                twice = Governor(EVERY, 1.0)
                twice._now = Cadences(stretch=2)
                monitor._governor.adopt(twice)

        return do

    plain, seen = whole(Net()), whole(Net())
    bare = train(plain, each=each(plain))
    run = watched(attach, listening, seen, each=each(seen))
    assert same(run, bare)
    assert run.num_graphs == bare.num_graphs
    assert list(run.reports) == [1, 6, 11, 21, 31, 41]


@pytest.mark.slow
@pytest.mark.long
def test_dynamic_shapes_are_seen_up_to_a_number_of_them(attach: Attach, listening: Collector) -> None:
    def size(step: int) -> int:
        return 7 + step // EVERY  # another number than any width, which torch would take for the same

    bare = train(whole(Net(), dynamic=True), size=size)
    run = watched(attach, listening, whole(Net(), dynamic=True), size=size)
    assert same(run, bare)
    assert run.num_graphs == bare.num_graphs
    assert len(run.reports) == compiled.MAX_VERSIONS
    assert run.hello is not None
    assert "dynamic shapes" in run.hello.blind["some_activations"]


@pytest.mark.slow
@pytest.mark.long
def test_a_compiled_function_around_the_model_is_seen(attach: Attach, listening: Collector) -> None:
    def function(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def loss_of(x: torch.Tensor) -> torch.Tensor:
            return net(x).pow(2).mean()  # type: ignore[no-any-return]

        return torch.compile(loss_of, backend="aot_eager", fullgraph=True)

    plain, seen = Net(), Net()
    bare = train(plain, call=function(plain))
    run = watched(attach, listening, seen, call=function(seen))
    assert same(run, bare)
    assert run.reports[1] == watched(attach, listening, Net()).reports[1]
    assert run.hello is not None
    assert "activations" not in run.hello.blind
    assert "modes" in run.hello.blind


@pytest.mark.slow
@pytest.mark.long
def test_what_was_compiled_before_attach_is_stated(attach: Attach, listening: Collector) -> None:
    model = whole(Net())
    run = watched(attach, listening, model, steps=12, early=2)
    assert run.hello is not None
    assert run.hello.blind["activations"] == compiled.TOO_EARLY
    assert not run.reports


SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
model = torch.compile(model, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.randn(5, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"], len(torch._dynamo.utils.counters["graph_break"]))
"""


@pytest.mark.slow
@pytest.mark.long
def test_without_code_graphs_are_seen_though_they_were_compiled_before_the_first_optimizer_step(
    tmp_path: Path, listening: Collector
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    settings = {"CABOOSE_SAMPLE_EVERY": "2", "CABOOSE_OVERHEAD_BUDGET": "1.0", "CABOOSE_SAMPLE_COMPILED": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "caboose", "train.py"],
        cwd=tmp_path,
        env={**clean_environment(), **settings, "CABOOSE_ENDPOINT": listening.endpoint},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1 0\n"), done.stderr
    reports = listening.wait_for(StepReport, 8)
    seen = [report for report in reports if "activation_order" in report.arrays]
    assert [report.arrays["activation_order"].tolist() for report in seen] == [[0, 1, 2]] * 3
    assert "activations" in listening.hellos[-1].visible


def _refusing(num: list[int]) -> Callable[..., Any]:
    def backend(graph: Any, _inputs: Any) -> Any:
        num[0] += 1
        if num[0] > 1:
            raise ValueError("this backend compiles once")
        return graph.forward

    return backend


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("what", ["backend", "recompile", "stance", "CUDA graphs", "checkpoint"])
def test_where_it_cannot_be_seen_the_run_goes_on_and_the_reason_is_stated(
    what: str, attach: Attach, listening: Collector
) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = whole(Net())

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.net, x, use_reentrant=False)

    def make() -> nn.Module:
        if what == "backend":
            return whole(Net(), backend=_refusing([0]))
        if what == "checkpoint":
            return Outer()
        return whole(Net(), backend="cudagraphs") if what == "CUDA graphs" else whole(Net())

    if what == "CUDA graphs" and not torch.cuda.is_available():
        pytest.skip("torch's cudagraphs backend needs CUDA")
    bare = train(make(), steps=12)

    def set_stance(step: int, _monitor: Any) -> None:
        if what == "stance" and step == 0:
            torch.compiler.set_stance("fail_on_recompile")

    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(error_on_recompile=what == "recompile"):
            run = watched(attach, listening, make(), steps=12, each=set_stance)
    finally:
        torch.compiler.set_stance("default")
    assert same(run, bare)
    assert run.hello is not None
    words = {"backend": "ValueError", "recompile": "error_on_recompile", "stance": "stance", "checkpoint": "saved tens"}
    blind = run.hello.blind.get("activations", "") + run.hello.blind.get("some_activations", "")
    assert words[what] in blind


@pytest.fixture
def group() -> Iterator[None]:
    from torch._C._distributed_c10d import HashStore

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def ddp_over_compiled(net: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(whole(net))


def compiled_ddp(net: nn.Module) -> nn.Module:
    return whole(nn.parallel.DistributedDataParallel(net), fullgraph=False)


def sharded_blocks(net: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for block in net.blocks:
        block.compile(backend="aot_eager")
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("make", [ddp_over_compiled, compiled_ddp, sharded_blocks])
def test_wrapped_models_are_seen(make: Compile, group: None, attach: Attach, listening: Collector) -> None:
    bare = train(make(Net()))
    run = watched(attach, listening, make(Net()))
    assert run.losses == bare.losses
    assert (run.num_graphs, run.num_breaks) == (bare.num_graphs, bare.num_breaks)
    eager = watched(attach, listening, Net())
    assert {name for name in eager.reports[1] if "blocks" in name} <= set(run.reports[1])
    assert {name: run.reports[1][name] for name in eager.reports[1]} == eager.reports[1]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("default::DeprecationWarning")  # inductor's own imports
def test_under_inductor_plain_steps_are_the_same_and_sampled_ones_within_rounding(
    attach: Attach, listening: Collector
) -> None:
    bare = train(whole(Net(), backend="inductor"), steps=12)
    run = watched(attach, listening, whole(Net(), backend="inductor"), steps=12)
    assert run.losses == pytest.approx(bare.losses, rel=1e-5)
    assert run.num_graphs == bare.num_graphs
    assert len(run.reports) == 3
    once = caboose.Sampling(100, overhead_budget=1.0, compiled=True)
    idle = train(whole(Net(), backend="inductor"), attach, listening, steps=12, sampling=once, early=1)
    assert same(idle, bare)


@pytest.mark.slow
@pytest.mark.long
def test_the_end_restores_torch(attach: Attach, listening: Collector) -> None:
    from torch._dynamo.output_graph import OutputGraph

    original = OutputGraph.call_user_compiler
    model = whole(Net())
    monitor = attach(model, torch.optim.SGD(model.parameters()), endpoint=listening.endpoint, sampling=ASKED)
    assert OutputGraph.call_user_compiler is not original
    monitor.close()
    assert wait_until(lambda: OutputGraph.call_user_compiler is original, 1)
