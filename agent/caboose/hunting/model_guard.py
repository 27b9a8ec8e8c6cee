"""Restores the model after a hunt, bit for bit.

Design
------
Like a trial before the run (`trials.trial`), but for a watched model in the middle of a step: its calls are not
observed meanwhile, so that nothing is counted twice. Gradients come from autograd directly and are never accumulated,
so that neither `.grad` nor DDP's reducer is touched; optimizers are not called. The copies are on the host: parameters,
buffers, gradients, attributes, random states.
"""

import contextlib
import copy
from collections.abc import Iterator

import torch

from caboose.observe.model_calls import paused
from caboose.observe.opaque import is_compiled
from caboose.tensors.random_states import RandomStates
from caboose.trials.restore_state import Kept


class RestoredModel:
    """A model that is run and restored."""

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
        """Restores everything; may be repeated."""
        self._kept.put_back()
        for module, state in self._extra_states:
            module.set_extra_state(copy.deepcopy(state))
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
        self._random.put_back()


@contextlib.contextmanager
def restored(model: torch.nn.Module) -> Iterator[RestoredModel]:
    """The model to run, eagerly if it is compiled; restored afterwards in any case."""
    was_anomaly, was_checked = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    with contextlib.ExitStack() as stack:
        if is_compiled(model):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(paused(model))
        kept = RestoredModel(model)
        try:
            yield kept
        finally:
            torch.autograd.set_detect_anomaly(was_anomaly, was_checked)
            kept.put_back()
