"""Writes and copies a model, its optimizer and its scheduler in every phase of a run; prints digests of the bytes.

Takes the endpoint, a directory and the kinds of models. Each kind is trained twice, in forked children with the same
seed: without Caboose and with it. One line of JSON per kind: the digests of both, and what held for the watched one
alone. `pickle.dumps` is compared within one process: torch writes addresses of memory into it.
"""

import atexit
import copy
import hashlib
import io
import json
import os
import pickle  # noqa: TID251 - what users do; Caboose itself pickles nothing
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

import caboose
from caboose.attachment import no_code
from caboose.report import live_monitors

STEPS = 3


class Net(torch.nn.Module):
    """A user's own model, with a part of its own class inside."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.inner = Net(depth - 1) if depth else torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.1))
        self.last = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(x)))


class SelfCopying(Net):
    """Copies its attributes itself, as some models do."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "SelfCopying":
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        for name, value in vars(self).items():
            vars(made)[name] = copy.deepcopy(value, memo)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (dict(vars(self)),)


def rebuilt(attributes: dict[str, Any]) -> SelfCopying:
    made = SelfCopying.__new__(SelfCopying)
    vars(made).update(attributes)
    return made


class Called(Net):
    """With a call of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 1.5


def doubled(_module: torch.nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
    """A user's own hook."""
    return output * 2


def hooked() -> torch.nn.Module:
    net = Net()
    net.register_forward_hook(doubled)
    return net


def distributed() -> torch.nn.Module:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return torch.nn.parallel.DistributedDataParallel(Net())


KINDS: dict[str, Callable[[], Any]] = {
    "plain": Net,
    "sequential": lambda: torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())),
    "self-copying": SelfCopying,
    "called": Called,
    "hooked": hooked,
    "distributed": distributed,
    "compiled": lambda: torch.compile(Net(), backend="eager"),
    "no-code": Net,
}


def saved(thing: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


FORMS: dict[str, Callable[[Any], bytes]] = {
    "torch.save": saved,
    "torch.save of a copy": lambda thing: saved(copy.deepcopy(thing)),
}


def digests(model: torch.nn.Module, others: list[Any]) -> dict[str, str]:
    """Of every way to write each of them."""
    things = {"model": model, **{type(thing).__name__: thing for thing in others}}
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        things["average"] = AveragedModel(model)
    return {
        f"{name}: {form}": hashlib.sha256(write(thing)).hexdigest()
        for name, thing in things.items()
        for form, write in FORMS.items()
    }


def train(kind: str, endpoint: str) -> dict[str, Any]:
    """The digests by phase of the run, and the facts."""
    torch.manual_seed(0)
    if kind == "no-code":
        no_code.begin(os.environ)
    model = KINDS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    monitor = caboose.Monitor(None)
    before = [pickle.dumps(thing) for thing in (model, optimizer, scheduler)]
    if kind != "no-code":
        monitor = caboose.attach(
            model,
            optimizer,
            job="pickled",
            endpoint=endpoint,
            sampling=caboose.Sampling(2, overhead_budget=1.0),
            hunt=True,
            rank=0,
            world_size=2 if kind == "distributed" else 1,  # with two ranks, parameters have hooks on sampled steps
        )
    after = [pickle.dumps(thing) for thing in (model, optimizer, scheduler)]
    found = {"attached": digests(model, [optimizer, scheduler])}
    facts = {"pickles when attached": before == after}
    for step in range(STEPS):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        found[f"forward {step}"] = digests(model, [optimizer, scheduler])
        loss.backward()
        optimizer.step()
        found[f"update {step}"] = digests(model, [optimizer, scheduler])
        optimizer.zero_grad()
        scheduler.step()
        monitor.step(loss)
        found[f"boundary {step}"] = digests(model, [optimizer, scheduler])
    if kind in ("plain", "no-code"):
        facts |= uses(model)
    before = [pickle.dumps(thing) for thing in (model, optimizer, scheduler)]
    live_monitors.close_all()
    facts["pickles when closed"] = before == [pickle.dumps(thing) for thing in (model, optimizer, scheduler)]
    found["closed"] = digests(model, [optimizer, scheduler])
    return {"written": found, "facts": facts}


def uses(model: torch.nn.Module) -> dict[str, bool]:
    """What a file written beside Caboose is good for."""
    own = [Net, torch.nn.Linear, torch.nn.Sequential, torch.nn.ReLU, torch.nn.Dropout]
    with torch.serialization.safe_globals(own):
        again = torch.load(io.BytesIO(saved(model)), weights_only=True)
    again.eval()
    x = torch.ones(1, 4)
    names = {
        "script of the loaded": torch.jit.script(again),
        "script of the model": torch.jit.script(model).eval(),
        "fx": torch.fx.symbolic_trace(again),
    }
    return {name: torch.equal(made(x), again(x)) for name, made in names.items()}


def run_child(kind: str, endpoint: str, result: Path, *, is_watched: bool) -> None:
    code = 1
    try:
        if not is_watched:
            os.environ["CABOOSE_DISABLED"] = "1"
        result.write_text(json.dumps(train(kind, endpoint)))
        code = 0
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(code)  # without taking torch apart, which takes a second


def main() -> None:
    endpoint, directory, *kinds = sys.argv[1:]
    os.environ["CABOOSE_ENDPOINT"] = endpoint
    warm = Net()
    optimizer = torch.optim.AdamW(warm.parameters())
    warm(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    for kind in kinds:
        found = []
        for is_watched in (False, True):
            result = Path(directory) / f"{kind}-{is_watched}.json"
            child = os.fork()
            if child == 0:
                run_child(kind, endpoint, result, is_watched=is_watched)
            _, status = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(status):
                sys.exit(f"{kind}, {'watched' if is_watched else 'bare'}: exit code {status}")
            found.append(json.loads(result.read_text()))
        print(json.dumps({"kind": kind, "bare": found[0], "watched": found[1]}), flush=True)


if __name__ == "__main__":
    main()
