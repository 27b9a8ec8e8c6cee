"""Names for the parts of a job that no one named: the models' classes, or the variables that hold them.

Design
------
A class is the better name where it is the user's own and belongs to one part: `Generator` is "generator". A class of
torch names none, and two models of one class would have one name: there the variable counts. It is looked for in the
script's globals, then among what refers to the model (an object's attribute), once. The variables of a function are not
looked at: before Python 3.13, reading them makes the frame keep a step's tensors. What is left gets the class, and a
number where that is taken.
"""

import gc
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from caboose.observe.parts import MAX_NAME, PartedModel
from caboose.observe.sites import user_frame


def names_of(
    parts: Sequence[tuple[Sequence[torch.nn.Module], Sequence[torch.Tensor]]], taken: Sequence[str] = ()
) -> list[str]:
    """A name for each part, given as its models and the tensors that its optimizers update; all different.

    The first parts have the names that are `taken`; returns those of the others.
    """
    classes = [_class_name(models) for models, _ in parts]
    usual = Counter(classes)
    names = list(taken)
    for (models, tensors), of_class in list(zip(parts, classes, strict=True))[len(names) :]:
        name = of_class if of_class and usual[of_class] == 1 else ""
        if not name:
            held = [models[0], unwrapped(models[0])] if models else list(tensors[:1])
            name = next((found for each in held if (found := _variable(each))), "") or of_class
        if not name:
            name = _snake(type(unwrapped(models[0])).__name__) if models else "tensor"
        names.append(_unique(_allowed(name), names))
    return names[len(taken) :]


def _class_name(models: Sequence[torch.nn.Module]) -> str:
    """The class of the first model in snake case; empty if it is one of torch's, or there is no model."""
    if not models:
        return ""
    kind = type(unwrapped(models[0]))
    return "" if kind.__module__.partition(".")[0] == "torch" else _snake(kind.__name__)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module inside DDP, FSDP1 and compiled wrappers."""
    while type(model).__module__.partition(".")[0] == "torch":
        inner = model._modules.get("module") or model._modules.get("_orig_mod")  # noqa: SLF001 - as plain data
        if inner is None:
            break
        model = inner
    return model


def _variable(held: Any) -> str:
    """The name under which the script or an object has this; empty if none does."""
    caller = user_frame(sys._getframe(1))
    for names in (caller.f_globals if caller is not None else {}, vars(sys.modules["__main__"])):
        for name, value in list(names.items()):
            if value is held:
                return name
    for holder in gc.get_referrers(held):
        if type(holder) is dict:
            for name, value in list(holder.items()):
                if value is held and isinstance(name, str) and name.isidentifier() and not name.startswith("_"):
                    return name
    return ""


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _allowed(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name).strip("_")[:MAX_NAME] or "part"
    return f"{plain}_model"[:MAX_NAME] if hasattr(PartedModel, plain) or plain == "training" else plain


def _unique(name: str, taken: Sequence[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name[: MAX_NAME - 4]}_{number}"
    return found
