"""The random number generators' states: torch's on every device, Python's and numpy's."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class RandomStates:
    """The states of all generators; kept so that a replay has the same dropout, never restored to skip data."""

    cpu: torch.Tensor
    device: torch.Tensor | None
    python: Any
    numpy: Any

    @classmethod
    def take(cls) -> "RandomStates":
        """The current states; an accelerator's is kept on the host, so nothing waits."""
        return cls(torch.get_rng_state(), _device_state(), random.getstate(), np.random.get_state())

    def put_back(self) -> None:
        """Restores them."""
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            torch.get_device_module().set_rng_state(self.device)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


def _device_state() -> torch.Tensor | None:
    if not torch.accelerator.is_available():
        return None
    module = torch.get_device_module()
    if not getattr(module, "is_initialized", lambda: True)():  # this process does not use it
        return None
    state: torch.Tensor = module.get_rng_state()
    return state
