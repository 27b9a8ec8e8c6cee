"""What is different with FSDP1, whose state dicts are collectives and warn about their own deprecation."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from caboose.tensors.placement import FSDP1_MODULE


def is_fsdp1(model: torch.nn.Module) -> bool:
    """Whether FSDP1 wraps the model or a part of it."""
    fsdp = sys.modules.get(FSDP1_MODULE)
    return fsdp is not None and bool(fsdp.FullyShardedDataParallel.fsdp_modules(model))


@contextmanager
def quiet(model: torch.nn.Module) -> Iterator[None]:
    """Ignores warnings where FSDP1 is used. For the training thread only: the filters are the whole process's."""
    if not is_fsdp1(model):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
