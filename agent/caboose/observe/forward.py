"""What the forward of the attached model shows: whether it is called at all, and its train and eval modes."""

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
    """Reads the model's own flag and those of the modules that behave differently in eval."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._norms = [m for m in model.modules() if isinstance(m, _NormBase) and not _is_frozen(m)]
        self._dropouts = [m for m in model.modules() if isinstance(m, _DropoutNd) and m.p > 0]
        self._normal = Mode()

    def read(self) -> Mode:
        """The modes now."""
        num_norms = sum(not m.training for m in self._norms)
        num_dropouts = sum(not m.training for m in self._dropouts)
        if self._model.training and not num_norms and not num_dropouts:
            return self._normal
        return Mode(self._model.training, num_norms, num_dropouts)


def _is_frozen(norm: _NormBase) -> bool:
    """A norm whose parameters take no gradient is in eval on purpose."""
    parameters = list(norm.parameters(recurse=False))
    return bool(parameters) and not any(p.requires_grad for p in parameters)
