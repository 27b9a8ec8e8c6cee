"""What the forward of the attached model shows: whether it is called at all, and its train and eval modes."""

from collections.abc import Iterator, Sequence, Set

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from caboose_wire import Mode

MAX_UNCALLED = 8
"""Steps without a forward of the attached module, from the first on, before that is reported."""
UNCALLED = "the attached module itself is never called, or only inside a compiled graph"


class Calls:
    """Whether the attached model is called.

    One that is not is a container of the models that are, or is called inside a compiled function. The time of the
    whole step and of its other phases is still measured, so `phases` stays visible.
    """

    def __init__(self) -> None:
        self.was_called = False
        self._num_uncalled = 0
        """Steps so far, while the model was never called."""

    def note_call(self) -> bool:
        """The model is called; returns whether the opposite was reported before."""
        was_called, self.was_called = self.was_called, True
        return not was_called and self._num_uncalled >= MAX_UNCALLED

    def note_uncalled(self) -> bool:
        """A step of a model that was never called; returns whether that is to be reported now."""
        self._num_uncalled += 1
        return self._num_uncalled == MAX_UNCALLED


class Modes:
    """Whether the trained modules are in train mode, and which of those that behave differently in eval are not.

    The flags of a wrapper, and of a module around the model, are not read: a framework may leave them in eval. Nor are
    those of a copy that no optimizer holds, as an average of the weights or a teacher: it is in eval on purpose.
    """

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        parameters = {id(p) for p in model.parameters()}
        trained = list(dict.fromkeys(trained_modules(model, held if held & parameters else parameters)))  # shared once
        self._owners = [m for m in trained if any(True for _ in m.parameters(recurse=False))] or [model]
        self._norms = [m for m in trained if isinstance(m, _NormBase) and not _is_frozen(m)]
        self._dropouts = [m for m in trained if isinstance(m, _DropoutNd) and m.p > 0]
        self._normal = Mode()

    @property
    def acts_in_training(self) -> bool:
        """Whether a batch norm or a dropout is in train mode now, and would change what an evaluation sees."""
        return any(m.training for m in self._norms) or any(m.training for m in self._dropouts)

    def read(self) -> Mode:
        """The modes now."""
        num_norms = sum(not m.training for m in self._norms)
        num_dropouts = sum(not m.training for m in self._dropouts)
        is_training = any(m.training for m in self._owners)  # most often the first one is
        if is_training and not num_norms and not num_dropouts:
            return self._normal
        return Mode(is_training, num_norms, num_dropouts)


def trained_modules(module: torch.nn.Module, held: Set[int]) -> Iterator[torch.nn.Module]:
    """The module and those in it, without parts that have parameters and none of them held."""
    parameters = {id(p) for p in module.parameters()}
    if parameters and not parameters & held:
        return
    yield module
    for child in module.children():
        yield from trained_modules(child, held)


def _is_frozen(norm: _NormBase) -> bool:
    """A norm whose parameters take no gradient is in eval on purpose."""
    parameters = list(norm.parameters(recurse=False))
    return bool(parameters) and not any(p.requires_grad for p in parameters)
