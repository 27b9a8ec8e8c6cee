"""The largest eigenvalue of the loss's Hessian, by power iteration.

Design
------
Where autograd supports a second backward, the product of the Hessian with a vector is exact: one graph is kept and
used for each product. FSDP2 and some kernels do not support it; there the product is the central difference of two
gradients, within half a per cent in float32. The result names which.

A function without a second derivative does not always raise: autograd may leave its share out. So one exact product is
compared with the difference, and is not used if they disagree. In half precision the difference is noise: it only
counts if it agrees with the difference at twice the distance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from caboose.trials.trial import Trial
from caboose.trials.weight_space import Direction, WeightSpace

STEP = 1e-6
"""Distance of the two gradients from the weights, as a share of their length.

Not larger: a ReLU that switches in between adds a jump to the difference, and with thousands only jumps are left (at
1e-5 the sign was wrong).
"""
AGREED = 0.3
"""The relative difference at which two products with one vector count as equal."""


@dataclass(frozen=True, slots=True)
class Eigenvalue:
    """The eigenvalue of largest magnitude that was found."""

    value: float
    residual: float
    """|Hv - value v| over |value|; 0 is exact."""
    num_iterations: int
    method: str


def top_eigenvalue(
    trial: Trial,
    space: WeightSpace,
    batches: Sequence[Any],
    *,
    num_iterations: int,
    tolerance: float,
    seed: int,
    report: Callable[[str], None],
) -> Eigenvalue:
    """Iterates until the residual is below the tolerance, or often enough."""
    with sdpa_kernel([SDPBackend.MATH]):  # the only attention kernel with a second derivative
        product, method = _product(trial, space, batches)
        vector = _unit(space, space.draw(seed))
        value, residual, done = 0.0, float("inf"), 0
        for done in range(1, num_iterations + 1):
            image = product(vector)
            value = space.dot(vector, image)
            length = space.length(image)
            if length == 0.0:
                return Eigenvalue(0.0, 0.0, done, method)
            residual = max(0.0, length**2 - value**2) ** 0.5 / max(abs(value), 1e-30)
            report(f"top eigenvalue {value:.4g}")
            if residual < tolerance:
                break
            vector = [part / length for part in image]
    return Eigenvalue(value, residual, done, method)


def lowest_eigenvalue(
    trial: Trial,
    space: WeightSpace,
    batches: Sequence[Any],
    top: Eigenvalue,
    *,
    num_iterations: int,
    tolerance: float,
    seed: int,
    report: Callable[[str], None],
) -> Eigenvalue:
    """The smallest one, negative at a saddle: the largest of `top` minus the Hessian, whose signs are all the same.

    Where the eigenvalue of largest magnitude is negative, it is the smallest itself. The residual is relative to `top`,
    since the smallest may be near zero.
    """
    if top.value <= 0:
        return top
    with sdpa_kernel([SDPBackend.MATH]):
        product, method = _product(trial, space, batches)
        vector = _unit(space, space.draw(seed + 1))
        value, residual, num_done = 0.0, float("inf"), 0
        while num_done < num_iterations:
            num_done += 1
            image = product(vector)
            value = space.dot(vector, image)
            residual = max(0.0, space.length(image) ** 2 - value**2) ** 0.5 / top.value
            report(f"lowest eigenvalue {value:.4g}")
            if residual < tolerance:
                break
            turned = [top.value * part - other for part, other in zip(vector, image, strict=True)]
            vector = _unit(space, turned) or vector
    return Eigenvalue(value, residual, num_done, method)


def _product(trial: Trial, space: WeightSpace, batches: Sequence[Any]) -> tuple[Callable[[Direction], Direction], str]:
    far = STEP * max(space.start_length(), 1e-3)

    def differences(vector: Direction, far: float = far) -> Direction:
        space.move(vector, far)
        ahead = space.gradient(batches)
        space.move(vector, -far)
        behind = space.gradient(batches)
        space.move(vector, 0.0)
        return [(a - b) / (2 * far) for a, b in zip(ahead, behind, strict=True)]

    vector = _unit(space, space.gradient(batches)) or _unit(space, space.draw(0))
    near = differences(vector)
    is_fine = _agree(space, near, differences(vector, 2 * far))
    if trial.is_sharded:
        if not is_fine:
            raise ValueError(
                "sharpness(): this model's gradients are too coarse for differences (half precision?), and FSDP2 has "
                "no second derivative: measure the model before sharding, or in float32"
            )
        return differences, "differences"
    error: Exception | None = None
    try:
        exact = _exact(trial, space, batches)
        found = exact(vector)
    except Exception as e:  # noqa: BLE001 - some operation has no second derivative, and says so in its own way
        error = e
    if trial.ranks.anywhere(error is not None):
        return differences, "differences"
    if is_fine and not _agree(space, _averaged(trial, found), near):
        return differences, "differences"
    return lambda vector: _averaged(trial, exact(vector)), "exact"


def _exact(trial: Trial, space: WeightSpace, batches: Sequence[Any]) -> Callable[[Direction], Direction]:
    total: torch.Tensor | None = None
    for batch in batches:
        trial.repeat_noise()
        loss = trial.loss(batch) / len(batches)
        total = loss if total is None else total + loss
    assert total is not None
    slopes = torch.autograd.grad(total, space.parameters, create_graph=True, allow_unused=True, materialize_grads=True)

    def product(vector: Direction) -> Direction:
        along = sum((s * v).sum() for s, v in zip(slopes, vector, strict=True))
        if not isinstance(along, torch.Tensor) or not along.requires_grad:
            return [torch.zeros_like(v) for v in vector]
        found = torch.autograd.grad(
            along, space.parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return [part.detach() for part in found]

    return product


def _averaged(trial: Trial, found: Direction) -> Direction:
    if trial.ranks.num == 1:
        return found
    return [(trial.ranks.total(part.double()) / trial.ranks.num).to(part.device, part.dtype) for part in found]


def _unit(space: WeightSpace, direction: Direction) -> Direction:
    """Of length 1; empty if it has none."""
    length = space.length(direction)
    return [part / length for part in direction] if length > 0 else []


def _agree(space: WeightSpace, a: Direction, b: Direction) -> bool:
    apart = space.length([x - y for x, y in zip(a, b, strict=True)])
    return apart <= AGREED * max(space.length(a), space.length(b))
