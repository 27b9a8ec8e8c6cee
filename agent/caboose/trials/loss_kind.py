"""How a loss is called: as a criterion, `loss(outputs, targets)`, or as a function of `(model, batch)`.

Design
------
torch's own losses and modules are criteria. Of a function of the user's, the names and annotations of its two
arguments decide. Where they say nothing (`lambda a, b: ...`), both ways are tried on the first batch, and the one that
returns one number is used; a trial restores everything anyway. If neither does, the error has the reasons of both.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch

Kind = Literal["criterion", "of model and batch", "unknown"]
MODELS = ("model", "net", "network", "module", "m")
BATCHES = ("batch", "data", "sample", "samples", "examples", "inputs_and_targets", "minibatch")
OUTPUTS = (
    *("output", "outputs", "out", "outs", "logits", "logit", "pred", "preds", "prediction", "predictions", "predicted"),
    *("y_hat", "yhat", "y_pred", "ypred", "scores", "log_probs", "probs", "estimate", "input"),
)
TARGETS = (
    *("target", "targets", "label", "labels", "y", "y_true", "ytrue", "truth", "gt", "ground_truth", "true"),
    *("expected", "reference"),
)
WAYS = "give a criterion, a function of (model, batch), or a function of (outputs, targets)"


def kind_of(loss_fn: Any) -> Kind:
    """What is known without calling it."""
    inner, _ = criterion_of(loss_fn)
    names = _required(inner if isinstance(loss_fn, torch.nn.Module) else loss_fn)
    first = next(iter(names), "")
    if isinstance(inner, torch.nn.Module):
        return "of model and batch" if first in MODELS else "criterion"
    if getattr(inner, "__module__", "") == "torch.nn.functional":
        return "criterion"
    second = names[1] if len(names) > 1 else ""
    if first in MODELS or second in BATCHES or _takes_module(loss_fn):
        return "of model and batch"
    return "criterion" if first in OUTPUTS or second in TARGETS else "unknown"


def objection(loss_fn: Any) -> str:
    """Why it cannot be called with two arguments; empty if it can, or if that is not known."""
    if loss_fn is None or isinstance(loss_fn, torch.nn.Module):
        return ""
    try:
        inspect.signature(loss_fn).bind(None, None)
    except TypeError:
        names = ", ".join(_required(loss_fn))
        return f"{name_of(loss_fn)}({names}) does not take two arguments; {WAYS}"
    except ValueError:  # no signature is known, as of some built-in functions
        return ""
    return ""


def is_criterion(loss_fn: Any) -> bool:
    """Whether it certainly takes (outputs, targets)."""
    return kind_of(loss_fn) == "criterion"


def criterion_of(loss_fn: Any) -> tuple[Any, dict[str, Any]]:
    """The function inside `functools.partial`, and the arguments that it binds by name."""
    settings: dict[str, Any] = {}
    while isinstance(loss_fn, functools.partial):
        settings = {**loss_fn.keywords, **settings}
        loss_fn = loss_fn.func
    return loss_fn, settings


def name_of(loss_fn: Any) -> str:
    """For messages."""
    criterion, _ = criterion_of(loss_fn)
    return getattr(criterion, "__name__", type(criterion).__name__)


def _required(loss_fn: Any) -> list[str]:
    """The names of the positional arguments, in their order."""
    function = loss_fn.forward if isinstance(loss_fn, torch.nn.Module) else loss_fn
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds and (p.default is p.empty or p.name in (*MODELS, *BATCHES))]


def _takes_module(loss_fn: Any) -> bool:
    """Whether its first argument is annotated as a module."""
    try:
        first = next(iter(inspect.signature(loss_fn, eval_str=True).parameters.values()), None)
    except (TypeError, ValueError, NameError, SyntaxError, AttributeError):
        return False
    kind = None if first is None else first.annotation
    return isinstance(kind, type) and issubclass(kind, torch.nn.Module)


def settle(
    tool: str, loss_fn: Any, of_model: Callable[[], Any], of_outputs: Callable[[], Any]
) -> Literal["criterion", "of model and batch"]:
    """The way that returns one number, of a loss of unknown kind; TypeError with both reasons if neither does."""
    reasons = []
    ways: tuple[tuple[Literal["criterion", "of model and batch"], Callable[[], Any]], ...] = (
        ("of model and batch", of_model),
        ("criterion", of_outputs),
    )
    for kind, call in ways:
        try:
            found = call()
        except Exception as error:  # noqa: BLE001 - the user's own code, perhaps with arguments that it does not want
            reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
            continue
        if isinstance(found, torch.Tensor) and found.numel() == 1:
            return kind
        reasons.append(f"it returned {describe(found)}, and not one number")
    raise TypeError(
        f"{tool}(loss): {name_of(loss_fn)} fits neither (model, batch): {reasons[0]}; nor (outputs, targets): "
        f"{reasons[1]}; {WAYS}"
    )


def describe(value: Any) -> str:
    """What a loss returned, for a message."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return type(value).__name__
