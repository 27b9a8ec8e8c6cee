"""Whether the model is in train or eval mode when it is trained."""

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from caboose_wire import Mode


class Modes:
    """Looks at the model's own flag and at the modules that behave differently in eval."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._norms = [m for m in model.modules() if isinstance(m, _NormBase) and not _is_frozen(m)]
        self._dropouts = [m for m in model.modules() if isinstance(m, _DropoutNd) and m.p > 0]
        self._normal = Mode()

    def look(self) -> Mode:
        """The modes now."""
        num_norms = sum(not m.training for m in self._norms)
        num_dropouts = sum(not m.training for m in self._dropouts)
        if self._model.training and not num_norms and not num_dropouts:
            return self._normal
        return Mode(self._model.training, num_norms, num_dropouts)


def _is_frozen(norm: _NormBase) -> bool:
    """A norm whose own parameters take no gradient is in eval on purpose."""
    parameters = list(norm.parameters(recurse=False))
    return bool(parameters) and not any(p.requires_grad for p in parameters)
