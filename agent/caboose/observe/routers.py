"""Which experts the routers of mixture-of-experts layers choose, on sampled steps.

Design
------
A router is found by structure: a leaf outside of a module's experts whose weight has one row per expert. How many
experts a token gets is read from the router, the module around it or the model's configuration; where none has it, the
router is not read until `monitor.watch_router` names it. Its output has the experts that were chosen, or a logit of
each, of which the largest count as chosen.

Choices are counted on the device without waiting for it. Of each sample the entropy of the shares is kept (1: all
experts get the same, 0: one gets all) and the busiest expert; over a window of samples, the share of experts that got
no token at all. Few tokens say nothing about that, so a window in which an expert could expect few has no such share.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caboose.tensors.readable import own_part

WINDOW = 8
"""Sampled steps over which an expert must get no token to count as dead."""
MAX_CHOICES = 65_536
"""Of one output; more are subsampled evenly."""
MIN_EXPECTED = 32
"""Tokens that an expert must be able to expect in a window."""
NUM_CHOSEN = ("top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "k")
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
MAX_EXPERTS = 4096


@dataclass(frozen=True, slots=True)
class Router:
    """One router: how many experts there are, and how many each token gets."""

    num_experts: int
    top_k: int


def find_routers(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, Router]]:
    """The routers of a model that are recognised by structure."""
    settings = [getattr(module, "config", None) for module in model.modules()][:1]
    for parent in model.modules():
        for name, experts in parent.named_children():
            if not (name.lower().endswith("experts") or type(experts).__name__.endswith("Experts")):
                continue
            num = _num_experts(experts, parent)
            gate = _gate(parent, experts, num) if 2 <= num <= MAX_EXPERTS else None
            top_k = (
                0 if gate is None else _top_k([gate, *_above(parent, gate), parent, getattr(parent, "config", None)])
            )
            top_k = top_k or _top_k(settings)
            if gate is not None and 1 <= top_k <= num:
                yield gate, Router(num, top_k)
                break


def _num_experts(experts: torch.nn.Module, parent: torch.nn.Module) -> int:
    if isinstance(experts, torch.nn.ModuleList | torch.nn.ModuleDict):
        return len(experts)
    known = _first_number((experts, parent), NUM_EXPERTS)
    if known:
        return known
    stacked = [parameter.shape[0] for parameter in experts.parameters() if parameter.dim() == 3]
    return stacked[0] if stacked else 0


def _gate(parent: torch.nn.Module, experts: torch.nn.Module, num: int) -> torch.nn.Module | None:
    """The leaf outside of the experts whose weight has a row per expert; None if several could be it."""
    found = [
        leaf
        for child in parent.children()
        if child is not experts
        for leaf in child.modules()
        if not any(True for _ in leaf.children())
        if num_rows(leaf) == num
    ]
    return found[0] if len(found) == 1 else None


def num_rows(module: torch.nn.Module) -> int:
    """The rows of a module's weight; 0 if it has no matrix of that name."""
    weight = getattr(module, "weight", None)
    return weight.shape[0] if isinstance(weight, torch.Tensor) and weight.dim() == 2 else 0


def _above(parent: torch.nn.Module, gate: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules between."""
    return [child for child in parent.children() if any(module is gate for module in child.modules())]


def _top_k(places: Sequence[Any]) -> int:
    found = _first_number(places, NUM_CHOSEN)
    if found:
        return found
    named = [
        re.search(r"[Tt]op_?(\d+)", type(place).__name__) for place in places if isinstance(place, torch.nn.Module)
    ]
    return next((int(match.group(1)) for match in named if match), 0)


def _first_number(places: Sequence[Any], names: Sequence[str]) -> int:
    values = (getattr(place, name, None) for place in places if place is not None for name in names)
    return next((value for value in values if type(value) is int and value > 0), 0)


def router_of(module: torch.nn.Module, num_experts: int | None, top_k: int | None) -> Router:
    """A router that the user names; ValueError if its numbers are neither given nor found."""
    num = num_experts or _first_number([module], NUM_EXPERTS) or num_rows(module)
    chosen = top_k or _top_k([module])
    if not 2 <= num <= MAX_EXPERTS:
        raise ValueError(f"watch_router(): {num} experts; give num_experts=, between 2 and {MAX_EXPERTS:,}")
    if not 1 <= chosen <= num:
        raise ValueError(f"watch_router(): top_k is {chosen} of {num} experts; give top_k=, the experts per token")
    return Router(num, chosen)


class Routers:
    """What the routers of one model chose; rows are those of the table of modules."""

    def __init__(self) -> None:
        self._routers: dict[int, Router] = {}
        self._counts: dict[int, torch.Tensor] = {}
        self._windows: dict[int, torch.Tensor] = {}
        self._num_chosen: dict[int, int] = {}
        self._num_in_window = 0

    def add(self, row: int, router: Router) -> None:
        self._routers[row] = router

    def see(self, row: int, output: Any) -> None:
        """A module has returned; nothing happens unless it is a router."""
        router = self._routers.get(row)
        if router is None or row in self._counts:
            return
        chosen = _chosen(output, router)
        if chosen is None or not chosen.numel():
            return
        if chosen.numel() > MAX_CHOICES:
            chosen = chosen[:: -(-chosen.numel() // MAX_CHOICES)]
        num = router.num_experts
        places = torch.where((chosen >= 0) & (chosen < num), chosen, num).long()
        ones = torch.ones((), device=chosen.device).expand(places.shape)
        self._counts[row] = torch.zeros(num + 1, device=chosen.device).scatter_add_(0, places, ones)[:num]
        self._num_chosen[row] = self._num_chosen.get(row, 0) + places.numel()

    def forget(self) -> None:
        """Drops what was collected and not taken."""
        self._counts = {}

    def take(self) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
        """The rows that were seen, those with as many experts together, and an array of each statistic."""
        counts, self._counts = self._counts, {}
        if not counts:
            return
        self._num_in_window += 1
        is_over = self._num_in_window >= WINDOW
        for row, values in counts.items():
            before = self._windows.get(row)
            self._windows[row] = values if before is None else before + values
        for num in sorted({self._routers[row].num_experts for row in counts}):
            rows = [row for row in counts if self._routers[row].num_experts == num]
            yield rows, self._statistics(rows, torch.stack([counts[row] for row in rows]), is_over=is_over)
        if is_over:
            self._windows, self._num_chosen, self._num_in_window = {}, {}, 0

    def _statistics(self, rows: list[int], counts: torch.Tensor, *, is_over: bool) -> dict[str, torch.Tensor]:
        shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)
        busiest = shares.max(dim=1)
        found = {
            "router_entropy": -torch.xlogy(shares, shares).sum(dim=1) / math.log(counts.shape[1]),
            "router_share": busiest.values,
            "router_busiest": busiest.indices.to(torch.float32),
        }
        known = [row for row in rows if self._num_chosen[row] >= MIN_EXPECTED * counts.shape[1]] if is_over else []
        if known:
            unused = torch.stack([self._windows[row] for row in rows]) == 0
            is_known = torch.tensor([row in known for row in rows], device=counts.device)
            found["router_dead"] = torch.where(is_known, unused.to(torch.float32).mean(dim=1), -1.0)
        return found


def _chosen(output: Any, router: Router) -> torch.Tensor | None:
    """The experts of the tokens of an output, in one dimension."""
    tensors = [output] if isinstance(output, torch.Tensor) else list(output) if isinstance(output, tuple | list) else []
    mine = [own_part(tensor, "a router") for tensor in tensors if isinstance(tensor, torch.Tensor)]
    tensors = [tensor.detach() for tensor in mine if tensor is not None and tensor.dim()]
    for tensor in tensors:
        if not tensor.is_floating_point() and tensor.dtype is not torch.bool and tensor.shape[-1] == router.top_k:
            return tensor.reshape(-1)
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.shape[-1] == router.num_experts:
            return torch.topk(tensor, router.top_k, dim=-1).indices.reshape(-1)
    return None
