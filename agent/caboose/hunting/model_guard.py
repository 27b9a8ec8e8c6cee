"""Leaves the model as it was: what a hunt may change is kept before, and put back after, bit for bit.

Design
------
As a trial before the run does (`trials.trial`), but for a model that is watched and in the midst of a step: the
agent's own hooks are taken out for the while, so that nothing is counted twice. Gradients are asked of autograd
directly and never accumulated, so that neither `.grad` nor DDP's reducer is touched; optimizers are not called at all.
The copies are on the host: parameters, buffers, gradients, attributes, random states.
"""

import contextlib
import copy
from collections.abc import Iterator

import torch

from caboose.guard import Protected
from caboose.observe.activations import is_compiled
from caboose.tensors.random_states import RandomStates
from caboose.trials.restore_state import Kept

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


class Spared:
    """A model that is run and put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._kept = Kept()
        self._parameters = list(model.parameters())
        self._gradients = [parameter.grad for parameter in self._parameters]
        self._random = RandomStates.take()
        for parameter in self._parameters:
            self._kept.keep(parameter)
        self._kept.keep([gradient for gradient in self._gradients if gradient is not None])
        for module in model.modules():
            self._kept.keep_attributes(module)
        usual = torch.nn.Module.get_extra_state
        self._extra_states = [
            (module, copy.deepcopy(module.get_extra_state()))
            for module in model.modules()
            if type(module).get_extra_state is not usual
        ]

    def put_back(self) -> None:
        """Everything as it was; may be done again and again."""
        self._kept.put_back()
        for module, state in self._extra_states:
            module.set_extra_state(copy.deepcopy(state))
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
        self._random.put_back()

    def take_out_own_hooks(self) -> None:
        """The agent's; they are put back with the rest."""
        for module in self.model.modules():
            for name in HOOKS:
                hooks = getattr(module, name, None) or {}
                for key in [key for key, hook in hooks.items() if isinstance(hook, Protected)]:
                    del hooks[key]


@contextlib.contextmanager
def spared(model: torch.nn.Module) -> Iterator[Spared]:
    """The model to be run, eagerly if it is compiled; afterwards it is as it was, whatever happened."""
    was_anomaly, was_checked = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    with contextlib.ExitStack() as stack:
        if is_compiled(model):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        kept = Spared(model)
        try:
            kept.take_out_own_hooks()
            yield kept
        finally:
            torch.autograd.set_detect_anomaly(was_anomaly, was_checked)
            kept.put_back()
