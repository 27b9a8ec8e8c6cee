"""The state that a rollback restores: parameters, buffers, optimizers, schedulers, scaler, extras, random states.

Design
------
`capture` returns the current tensors, by name, and the rest as a small copy; both on the training thread at a step
boundary, without waiting for a device. `put_back` restores the rest, after the tensors' bytes have been copied into
what `targets` named: the very tensors that are in use, so that DDP's buckets, compiled code and captured graphs stay
valid. Only what cannot be written in place is recreated: state inside lists, and what an extra takes in its own
`load_state_dict`.

An optimizer makes its state in its first step. State that is newer than the snapshot is removed, and the optimizer
makes it again; state that is missing is made from the snapshot.

Tensors are written without autograd (their `data`), so that an existing graph stays valid. Of the scaler the tensors
are kept, not its `state_dict`, which would wait for the device.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from caboose.observe.weights import Fingerprint
from caboose.rollback.learning_rates import (
    RATES,
    follow_schedule,
    is_off_schedule,
    scale_lr,
    schedule_change,
    unknown_schedule,
)
from caboose.tensors.placement import without_compile
from caboose.tensors.random_states import RandomStates
from caboose.tensors.shards import OwnParameters, is_fsdp, reshard
from caboose.tensors.tensor_tree import Leaf, Parts, Tensors, inner_tensors, put_together, take_apart

LearningRates = Literal["keep", "rewind"]

CYCLED = ("momentum", "betas", "base_momentum", "max_momentum")
"""Settings that a scheduler changes with the learning rate, in groups with `max_momentum`."""
SCALER_TENSORS = ("_scale", "_growth_tracker")
SCALER_NUMBERS = ("_growth_factor", "_backoff_factor", "_growth_interval")
REPLICATED = ("parameter/", "optimizer/")
"""Prefixes of the names that are equal on all ranks of a replicated model."""


@dataclass(slots=True)
class Rest:
    """The state without its tensors, and where they belong."""

    states: list[dict[Any, Any]]
    """For each optimizer, the state by the parameter's position."""
    groups: list[list[dict[str, Any]]]
    schedulers: list[Any]
    scaler: Any
    extras: list[Any]
    modules: dict[str, Any]
    """State of modules that keep some outside of parameters and buffers."""
    random: RandomStates


@dataclass(slots=True)
class StateAtBoundary:
    """The complete state at one boundary."""

    parts: Parts
    rest: Rest


class TrainingState:
    """The state of one rank."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        schedulers: Sequence[Any] = (),
        scaler: Any = None,
        extra: Sequence[Any] = (),
        world: int = 1,
    ) -> None:
        for number, thing in enumerate(extra):
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                raise TypeError(
                    f"attach(extra=...): element {number} is a {type(thing).__name__}; what is restored with the "
                    "model needs state_dict and load_state_dict"
                )
        for optimizer in optimizers:
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                raise ValueError(
                    "attach(rollback='auto'): the state of a ZeroRedundancyOptimizer cannot be kept in snapshots; "
                    "use FSDP, or rollback='advise'"
                )
        for scheduler in schedulers:
            if not hasattr(scheduler, "load_state_dict"):
                raise TypeError(f"attach(scheduler=...): a {type(scheduler).__name__} has no load_state_dict")
        self.model = model
        self.optimizers = list(optimizers)
        self._schedulers = list(schedulers)
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._extras = list(extra)
        self._parameters = OwnParameters(model, optimizers)
        devices = {p.device for p in self._parameters.tensors().values() if p.device.type != "cpu"}
        if len(devices) > 1:
            raise ValueError(
                f"attach(rollback='auto'): the model is on {len(devices)} devices of one process, of which snapshots "
                "cannot be taken; use one process per device, or rollback='advise'"
            )
        self.device = devices.pop() if devices else torch.device("cpu")
        """The model's device."""
        kept = torch.nn.Module.get_extra_state
        self._stateful = {n: m for n, m in model.named_modules() if type(m).get_extra_state is not kept}
        self._steady = {
            name
            for name, buffer in self._buffers().items()
            if buffer.is_floating_point() and bool(torch.isfinite(buffer).all())
        }
        bare = without_compile(model)
        is_ddp = isinstance(bare, torch.nn.parallel.DistributedDataParallel)
        self.is_replicated = (is_ddp or world == 1) and not is_fsdp(model)
        """Whether parameters and optimizer states are equal on all ranks."""
        ignored = {f"module.{name}" for name in getattr(bare, "parameters_to_ignore", ())}
        compared = [p for name, p in bare.named_parameters() if name not in ignored]
        self._fingerprint = Fingerprint(compared) if self.is_replicated and compared else None

    @property
    def num_parameter_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._parameters.tensors().values())

    @property
    def num_buffer_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers().values())

    def num_extra_bytes(self) -> int:
        """Bytes of the extras' state. ValueError names one whose state cannot be read."""
        parts = Parts()
        for number, extra in enumerate(self._extras):
            try:
                self._look_at_extra(number, extra, parts)
            except Exception as error:
                raise ValueError(
                    f"attach(extra=...): the state of element {number}, a {type(extra).__name__}, cannot be kept in "
                    f"snapshots: {error}"
                ) from error
        return sum(tensor.nbytes for tensor in parts.tensors.values())

    def fingerprint(self) -> int | None:
        """Bit-exact over the current parameters, equal on all ranks; None if each rank has its own."""
        if self._fingerprint is None:
            return None
        words, _ = self._fingerprint.take()
        whole = sum(int(word) << (16 * place) for place, word in enumerate(words.tolist()))
        return whole - 2**64 if whole >= 2**63 else whole

    def is_checked(self, name: str) -> bool:
        """Whether a healthy run has only finite numbers there; masks, for example, are often infinite by design."""
        return name.startswith(REPLICATED) or name in self._steady

    def capture(self) -> StateAtBoundary:
        """The current state."""
        parts = Parts(self.model_tensors())
        groups = [
            [take_apart(_settings(group), f"group/{n}/{i}", parts) for i, group in enumerate(optimizer.param_groups)]
            for n, optimizer in enumerate(self.optimizers)
        ]
        rest = Rest(
            states=[self._state_of(number, parts) for number in range(len(self.optimizers))],
            groups=groups,
            schedulers=take_apart([each.state_dict() for each in self._schedulers], "scheduler", parts),
            scaler=self._look_at_scaler(parts),
            extras=[self._look_at_extra(n, extra, parts) for n, extra in enumerate(self._extras)],
            modules={
                name: take_apart(module.get_extra_state(), f"module/{name}", parts, is_loose=True)
                for name, module in self._stateful.items()
            },
            random=RandomStates.take(),
        )
        return StateAtBoundary(parts, rest)

    def model_tensors(self) -> Tensors:
        """Current parameters and buffers, by name."""
        return {**self._parameters.tensors(), **self._buffers()}

    def _buffers(self) -> Tensors:
        found: Tensors = {}
        for name, buffer in self.model.named_buffers():
            found.update(inner_tensors(buffer, f"buffer/{name}"))
        return found

    def _state_of(self, number: int, parts: Parts) -> dict[Any, Any]:
        optimizer = self.optimizers[number]
        places = {id(parameter): place for place, parameter in enumerate(_parameters_of(optimizer))}
        found = {}
        for key, state in optimizer.state.items():
            place = places.get(id(key), -1) if isinstance(key, torch.Tensor) else key
            if place != -1:  # else it belongs to a parameter that is no longer trained
                found[place] = take_apart(state, f"optimizer/{number}/{place}", parts)
        return found

    def _look_at_scaler(self, parts: Parts) -> Any:
        scaler = self._scaler
        if scaler is None:
            return None
        if not isinstance(scaler, torch.amp.GradScaler):
            return take_apart(scaler.state_dict(), "scaler", parts, is_loose=True)
        return take_apart({name: getattr(scaler, name) for name in (*SCALER_TENSORS, *SCALER_NUMBERS)}, "scaler", parts)

    def _look_at_extra(self, number: int, extra: Any, parts: Parts) -> Any:
        if not isinstance(extra, torch.nn.Module):
            return take_apart(extra.state_dict(), f"extra/{number}", parts, is_loose=True)
        for name, tensor in (*extra.named_parameters(), *extra.named_buffers()):
            parts.add(f"extra/{number}/{name}", tensor)  # in place, like the model
        return None

    def scale_lr(self, factor: float) -> str:
        """Multiplies all learning rates from now on; returns why that may not last, or nothing."""
        return scale_lr(self.optimizers, self._schedulers, factor)

    def unknown_schedule(self) -> str:
        """Why scaled learning rates would not stay scaled, or nothing."""
        return unknown_schedule(self.optimizers, self._schedulers)

    def follow_schedule(self, rest: Rest) -> list[str]:
        """Sets rates that left their schedule since a snapshot back to it; returns what was changed."""
        return follow_schedule(self._schedulers, self.optimizers, rest.groups, rest.schedulers)

    def is_off_schedule(self, rest: Rest) -> bool:
        """Whether a rate left its schedule since a snapshot; on the sender's thread."""
        return is_off_schedule(self._schedulers, self.optimizers, rest.groups, rest.schedulers)

    def schedule_change(self, rest: Rest) -> tuple[float, float] | None:
        """The scheduled rate at a snapshot and now, where the schedule itself raised it much since."""
        return schedule_change(self._schedulers, rest.schedulers)

    def settle(self) -> None:
        """Called before tensors are written: drops stale copies of parameters, and waits for the device."""
        reshard(self.model)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def is_kept(self, name: str, lr: LearningRates) -> bool:
        """Whether a tensor stays as it is under this policy."""
        if lr == "rewind":
            return False
        parts = name.split("/")
        return parts[0] == "scheduler" or (parts[0] == "group" and parts[3] in RATES)

    def put_back(self, rest: Rest, tensors: Tensors, *, lr: LearningRates, replay: bool) -> None:
        """Restores everything but the copied bytes; `tensors` are those that hold what was copied, by name."""

        def tensor(leaf: Leaf) -> torch.Tensor:
            return tensors[leaf.name]

        for optimizer, states, groups in zip(self.optimizers, rest.states, rest.groups, strict=True):
            _put_states_back(optimizer, states, tensor)
            for group, settings in zip(optimizer.param_groups, groups, strict=False):  # later groups are newer
                kept = _scheduled(group) if lr == "keep" else ()
                group.update({k: put_together(v, tensor) for k, v in settings.items() if k not in kept})
        if lr == "rewind":
            for scheduler, state in zip(self._schedulers, rest.schedulers, strict=True):
                scheduler.load_state_dict(put_together(state, tensor))
        self._put_scaler_back(rest.scaler, tensor)
        for extra, state in zip(self._extras, rest.extras, strict=True):
            if not isinstance(extra, torch.nn.Module):
                extra.load_state_dict(put_together(state, tensor))
        for name, state in rest.modules.items():
            self._stateful[name].set_extra_state(put_together(state, tensor))
        if replay:
            rest.random.put_back()

    def _put_scaler_back(self, state: Any, tensor: Callable[[Leaf], torch.Tensor]) -> None:
        scaler = self._scaler
        if scaler is None:
            return
        if not isinstance(scaler, torch.amp.GradScaler):
            scaler.load_state_dict(put_together(state, tensor))
            return
        for name, value in state.items():
            live = getattr(scaler, name)
            if value is None and live is not None:  # it did not exist yet
                live.fill_(getattr(scaler, f"_init{name}"))
            else:
                setattr(scaler, name, put_together(value, tensor))


def _put_states_back(
    optimizer: torch.optim.Optimizer, states: dict[Any, Any], tensor: Callable[[Leaf], torch.Tensor]
) -> None:
    parameters = list(_parameters_of(optimizer))
    for place, parameter in enumerate(parameters):
        if place not in states:
            optimizer.state.pop(parameter, None)  # made after the snapshot
    for place, state in states.items():
        key = parameters[place] if isinstance(place, int) else place
        live = optimizer.state[key]
        if isinstance(live, dict) and isinstance(state, dict):  # the dictionary itself stays: others may hold it
            kept = put_together(state, tensor)
            for name in [name for name in live if name not in kept]:
                del live[name]
            live.update(kept)
        else:
            optimizer.state[key] = put_together(state, tensor)


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _scheduled(group: dict[str, Any]) -> tuple[str, ...]:
    """The settings of a group that follow the schedule, which continues."""
    return (*RATES, *CYCLED) if "max_momentum" in group else RATES
