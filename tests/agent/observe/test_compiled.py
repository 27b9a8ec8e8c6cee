"""What a run compiles is compiled as often as without the agent, and whole graphs stay whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import caboose
from caboose.observe.forward import UNCALLED
from caboose.observe.opaque import OPAQUE
from caboose_wire import StepReport
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]
STEPS = 12


class Net(torch.nn.Module):
    """With its activation as an attribute, so that it can be a compiled one."""

    def __init__(self, act: Callable[..., Any] = torch.nn.functional.gelu) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.last = torch.nn.Linear(8, 1)
        self.act = act

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.act(self.first(x)))


def build(what: str, compiled: Callable[[Any], Any]) -> tuple[torch.nn.Module, Callable[..., Any]]:
    """The model to attach to, and what the loop calls."""
    net: Any = Net()
    if what == "a function inside":
        net = Net(compiled(lambda x: torch.nn.functional.gelu(x) * 1.1))
    elif "forward" in what:
        net.forward = compiled(net.forward)
    elif what == "a function around":
        return net, compiled(lambda x: net(x) * 1.1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), net) if what == "the forward of a part" else net
    return model, model


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, as it traces
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("what", ["the forward", "the forward of a part", "a function inside", "a function around"])
def test_what_is_compiled_is_compiled_once_and_blindness_is_told(
    what: str, fullgraph: bool, attach: Attach, listening: Collector
) -> None:
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model, call = build(what, lambda part: torch.compile(part, backend=backend, fullgraph=fullgraph))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(2, overhead_budget=1.0))
    for _ in range(STEPS):
        loss = call(torch.randn(5, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss)
    assert len(listening.wait_for(StepReport, STEPS)) == STEPS
    assert monitor.guard.num_failures == 0
    assert len(graphs) == 1
    expected = UNCALLED if what == "a function around" else OPAQUE["compiled"]
    assert wait_until(lambda: listening.hellos[-1].blind.get("activations") == expected, 5)
