"""Records a training from inside, without Caboose: per optimizer step the losses, learning rates, norms and weights.

Design
------
Python imports this file at its start, because its directory is on PYTHONPATH. It waits for torch with an import hook,
so that the script and Caboose import torch in the order that they would without it. What it records, it writes as one
line of JSON per step of an optimizer to `$FIELD_RECORD/rank<R>.<PID>.jsonl`. It draws no random numbers and changes no
tensor.

Six switches make a script run on a CPU, with the same result in every run, without a change to it:

* FIELD_SEED: seeds random, numpy and torch when torch is imported;
* FIELD_GLOO: a process group is made with gloo whatever the script asks for;
* FIELD_ACCELERATOR: the script is shown 8 accelerators of type "cpu";
* FIELD_CIFAR: CIFAR-10's files need not have the published checksums;
* FIELD_ATTENTION: attention is computed from plain operations; the CPU's own kernel does not know DTensors;
* FIELD_CUDA: what the script moves to "cuda" or creates there stays on the CPU.

FIELD_STEPS ends the script, as `sys.exit()` would, after so many steps of its first optimizer.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import zlib
from typing import Any


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Calls `_begin` when torch has been imported."""

    def __init__(self) -> None:
        self._is_searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is None or spec.loader is None:
            return None
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: Any) -> None:
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            execute(module)
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module  # another hook may have put its own in this place
            _begin()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _begin() -> None:
    _prepare()
    if "FIELD_RECORD" in os.environ:
        Recorder().start()


def _prepare() -> None:
    import torch

    if "FIELD_SEED" in os.environ:
        import random

        import numpy

        seed = int(os.environ["FIELD_SEED"])
        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
    if "FIELD_GLOO" in os.environ:
        _use_gloo()
    if "FIELD_CUDA" in os.environ:
        _keep_on_cpu()
    if "FIELD_ATTENTION" in os.environ:
        torch.backends.cuda.enable_flash_sdp(False)  # it has this name for a CPU too
    if "FIELD_ACCELERATOR" in os.environ:
        torch.accelerator.is_available = lambda: True
        torch.accelerator.current_accelerator = lambda *_, **__: torch.device("cpu")
        torch.accelerator.device_count = lambda: 8
        torch.accelerator.set_device_index = lambda *_: None
    if "FIELD_TORCHVISION" in os.environ:
        # torchvision's wheel is built for CUDA: without its library two operators' declarations are missing on import.
        _KEPT.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _KEPT[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    if "FIELD_CIFAR" in os.environ:
        from torchvision.datasets import CIFAR10

        CIFAR10._check_integrity = lambda _: True  # type: ignore[method-assign]
        CIFAR10.meta = {**CIFAR10.meta, "md5": None}


_KEPT: list[Any] = []


def _use_gloo() -> None:
    import torch.distributed as dist

    original = dist.init_process_group

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return original("gloo", *args, **kwargs)

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group


def _keep_on_cpu() -> None:
    import torch
    from torch.overrides import TorchFunctionMode

    def stay(value: Any) -> Any:
        if isinstance(value, str) and value.split(":")[0] == "cuda":
            return "cpu"
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = {key: stay(value) for key, value in (kwargs or {}).items()}
            if type(kwargs.get("device")) is int:
                kwargs["device"] = "cpu"
            return func(*(stay(value) for value in args), **kwargs)

    def same(thing: Any, *_: Any, **__: Any) -> Any:
        return thing

    def staying(original: Any) -> Any:
        def to(thing: Any, *args: Any, **kwargs: Any) -> Any:
            args = tuple("cpu" if type(value) is int else stay(value) for value in args)
            return original(thing, *args, **{key: stay(value) for key, value in kwargs.items()})

        return to

    def on_cpu(original: Any) -> Any:
        def __init__(*args: Any, **kwargs: Any) -> None:
            original(*args, **{**kwargs, "device_ids": None, "output_device": None})

        return __init__

    wrapper = torch.nn.parallel.DistributedDataParallel
    wrapper.__init__ = on_cpu(wrapper.__init__)  # type: ignore[method-assign]
    torch.Tensor.to = staying(torch.Tensor.to)  # type: ignore[method-assign]
    torch.nn.Module.to = staying(torch.nn.Module.to)  # type: ignore[method-assign]

    torch.Tensor.pin_memory = same  # type: ignore[method-assign,assignment]
    torch.Tensor.cuda = torch.nn.Module.cuda = same  # type: ignore[method-assign,assignment]
    for name in (
        "set_device",
        "synchronize",
        "manual_seed",
        "manual_seed_all",
        "empty_cache",
        "reset_peak_memory_stats",
    ):
        setattr(torch.cuda, name, lambda *_, **__: None)  # one function each: dynamo keeps a table of them
    torch.cuda.device_count = lambda: 1
    torch.cuda.max_memory_allocated = lambda *_: 0
    torch.cuda.memory_allocated = lambda *_: 0
    torch.cuda.memory_reserved = lambda *_: 0
    _describe_a_device()
    mode = OnCpu()
    mode.__enter__()
    _KEPT.append(mode)


def _describe_a_device() -> None:
    """Answers what scripts ask of the device that they take for a GPU."""
    import collections
    import time
    import types

    import torch

    class Event:
        def __init__(self, *_: Any, **__: Any) -> None:
            self._time = 0.0

        def record(self, *_: Any) -> None:
            self._time = time.perf_counter()

        def elapsed_time(self, later: "Event") -> float:
            return 1000 * (later._time - self._time)

        def synchronize(self, *_: Any) -> None:
            pass

        wait = synchronize

        def query(self) -> bool:
            return True

    class Stream:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.cuda_stream = 0

        def _nothing(self, *_: Any) -> None:
            pass

        wait_stream = wait_event = record_event = synchronize = _nothing

        def __enter__(self) -> "Stream":
            return self

        __exit__ = _nothing

    device = types.SimpleNamespace(name="cpu", total_memory=1 << 34, major=8, minor=0, multi_processor_count=1)
    for module in (torch.cuda, torch.cpu):  # a function of its own for each name: dynamo keeps a table of them
        module.current_device = lambda: 0
        module.get_device_name = lambda *_: device.name
        module.get_device_properties = lambda *_: device
        module.get_device_capability = lambda *_: (device.major, device.minor)
        module.memory_stats = lambda *_: collections.defaultdict(int)
        module.Event = type("Event", (Event,), {})
    torch.cuda.Stream = Stream  # type: ignore[misc,assignment]
    torch.cuda.current_stream = lambda *_: Stream()
    torch.cuda.default_stream = lambda *_: Stream()
    torch.cuda.stream = lambda stream: stream
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = lambda *_, **__: torch.get_rng_state()
        module.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    for name in ("empty_cache", "reset_peak_memory_stats", "set_device"):
        setattr(torch.cpu, name, lambda *_: None)
    torch._utils._get_available_device_type = lambda: "cpu"


class Recorder:
    """One process."""

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._losses: list[float] = []
        self._raw: dict[int, float | None] = {}
        self._counts: dict[int, int] = {}
        self._is_inside = False
        self._file: Any = None
        self._ends = False

    def start(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda optimizer, *_: self._before(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._after(optimizer))
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            self._is_inside = True
            try:
                self._note_loss(args[0] if args else kwargs.get("tensors"))
                return original(*args, **kwargs)
            finally:
                self._is_inside = False
                for number, optimizer in enumerate(self._optimizers):
                    self._raw[number] = self._norm(optimizer)[0]

        torch.autograd.backward = backward

    def _note_loss(self, roots: Any) -> None:
        import torch

        for root in [roots] if isinstance(roots, torch.Tensor) else list(roots):
            if isinstance(root, torch.Tensor) and root.numel() == 1:
                self._losses.append(float(_local(root.detach())))

    def _number(self, optimizer: Any) -> int:
        for number, known in enumerate(self._optimizers):
            if known is optimizer:
                return number
        self._optimizers.append(optimizer)
        return len(self._optimizers) - 1

    def _norm(self, optimizer: Any) -> tuple[float | None, bool]:
        """None where the gradients are not kept with the parameters."""
        import torch

        total, is_sharded, has_any = 0.0, False, False
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                has_any = True
                local = _local(parameter.grad)
                is_sharded |= local is not parameter.grad
                if local.is_sparse:
                    local = local.coalesce().values()
                total += float(torch.linalg.vector_norm(local.detach().double())) ** 2
        return total**0.5 if has_any else None, is_sharded

    def _before(self, optimizer: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        if self._ends:
            sys.exit()
        number = self._number(optimizer)
        self._applied = self._norm(optimizer)
        self._rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        self._sizes = [sum(p.numel() for p in group["params"]) for group in optimizer.param_groups]
        self._current = number

    def _after(self, optimizer: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        number = self._number(optimizer)
        step = self._counts[number] = self._counts.get(number, 0) + 1
        crc = 0
        for parameter in _parameters(optimizer):
            crc = zlib.crc32(_bytes(parameter), crc)
        row = {
            "optimizer": number,
            "kind": type(optimizer).__name__,
            "step": step,
            "losses": self._losses,
            "lr": self._rates,
            "sizes": self._sizes,
            "norm": self._applied[0],
            "sharded": self._applied[1],
            "raw_norm": self._raw.get(number),
            "crc": crc,
        }
        self._losses = []
        self._write(row)
        if number == 0 and step == int(os.environ.get("FIELD_STEPS", "-1")):
            self._ends = True

    def _write(self, row: dict[str, Any]) -> None:
        if self._file is None or self._pid != os.getpid():
            rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
            path = os.path.join(os.environ["FIELD_RECORD"], f"rank{rank}.{os.getpid()}.jsonl")
            self._file, self._pid = open(path, "a", buffering=1), os.getpid()  # noqa: SIM115 - until the process ends
        self._file.write(json.dumps(row) + "\n")


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)


def _bytes(tensor: Any) -> bytes:
    import torch

    local = _local(tensor.detach()).contiguous()
    return bytes(local.reshape(-1).view(torch.uint8).numpy().tobytes()) if local.numel() else b""


sys.meta_path.insert(0, _AfterTorch())
