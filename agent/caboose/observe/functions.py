"""The functional activations whose outputs are read, and the name that each is reported by."""

from typing import Any

import torch

FUNCTIONS: dict[Any, str] = {
    function: name
    for name, functions in {
        "relu": (torch.nn.functional.relu, torch.relu, torch.Tensor.relu, torch.relu_, torch.Tensor.relu_),
        "relu6": (torch.nn.functional.relu6,),
        "gelu": (torch.nn.functional.gelu,),
        "silu": (torch.nn.functional.silu,),
        "tanh": (torch.tanh, torch.Tensor.tanh, torch.nn.functional.tanh),
        "sigmoid": (torch.sigmoid, torch.Tensor.sigmoid, torch.nn.functional.sigmoid),
        "softmax": (torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax),
    }.items()
    for function in functions
}
