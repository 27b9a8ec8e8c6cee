"""What torch itself does with compiled graphs is as without Caboose: limits, hooks, split and sharded graphs."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import caboose
from caboose.observe import compiled
from support.collector import Collector
from support.compiled_runs import EVERY, STEPS, Attach, Net, same, train, watched, whole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's own
]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert compiled.switch.reader is None


@pytest.fixture
def group() -> Iterator[None]:
    from torch._C._distributed_c10d import HashStore

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*recompile_limit")
def test_the_recompile_limit_is_reached_as_without_and_that_nothing_is_seen_then_is_stated(
    attach: Attach, listening: Collector
) -> None:
    """Each size is a compilation; after two of them torch runs the model without."""

    def size(step: int) -> int:
        return 7 + step // EVERY

    def run(**how: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=2):
            return train(whole(Net(), dynamic=False, fullgraph=False), steps=25, size=size, **how)

    bare = run()
    seen = run(attach=attach, listening=listening)
    assert same(seen, bare)
    assert seen.num_graphs == bare.num_graphs == 2
    assert list(seen.reports) == [1, 6]
    assert seen.hello.blind["some_activations"] == compiled.LEFT_TO_PYTHON


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_hook_that_the_script_adds_after_the_first_call_acts_as_without(
    is_guarded: bool, attach: Attach, listening: Collector
) -> None:
    """By default torch does not look for new hooks; where it is asked to, it compiles again, and that graph is read."""

    def adding(model: Any) -> Any:
        def do(step: int, _: caboose.Monitor | None) -> None:
            if step == 7:
                model.blocks[0].act.register_forward_hook(lambda module, inputs, output: output * 2)

        return do

    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=not is_guarded):
        plain, net = Net(), Net()
        bare = train(whole(plain), steps=22, each=adding(plain))
        run = watched(attach, listening, whole(net), steps=22, each=adding(net))
    assert same(run, bare)
    assert run.num_graphs == bare.num_graphs == 1 + is_guarded
    assert list(run.reports) == [1, 6, 11, 16, 21]
    assert all(set(rows) == set(run.reports[1]) for rows in run.reports.values())


def test_a_graph_that_ddp_splits_at_its_buckets_is_seen_and_stays_split(
    group: None, attach: Attach, listening: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 100)  # 1 MiB: more than this model has
    pieces: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.registry import lookup_backend

        pieces.append(len(graph.graph.nodes))
        return lookup_backend("aot_eager")(graph, inputs)

    def make() -> nn.Module:
        wrapped = nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=0.0003)  # type: ignore[arg-type]
        return whole(wrapped, fullgraph=False, backend=backend)

    bare = train(make())
    num_pieces = len(pieces)
    assert num_pieces > 1, "torch has split it"
    run = watched(attach, listening, make())
    assert same(run, bare)
    assert len(pieces) == 2 * num_pieces + 1, "the same pieces again, and the sampled version whole"
    eager = watched(attach, listening, Net())
    assert run.reports[1] == eager.reports[1]
    assert len(run.reports) == STEPS // EVERY


def test_a_sharded_model_that_is_compiled_as_a_whole_is_seen_in_its_pieces(
    group: None, attach: Attach, listening: Collector
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make() -> nn.Module:
        mesh, net = init_device_mesh("cpu", (1,)), Net()
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        return whole(fully_shard(net, mesh=mesh), fullgraph=False)  # type: ignore[arg-type]

    bare = train(make())
    run = watched(attach, listening, make())
    assert run.losses == bare.losses
    assert (run.num_graphs, run.num_breaks) == (bare.num_graphs, bare.num_breaks)
    eager = watched(attach, listening, Net())
    assert run.reports[1] == {name: seen for name, seen in eager.reports[1].items() if name not in ("first", "head")}
    assert run.hello is not None
    assert run.hello.blind["some_activations"].startswith("in no graph of a sampled step: first, head;")
