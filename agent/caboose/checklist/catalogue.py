"""The checklist: every check, in the order in which it is made and shown."""

from caboose.checklist import (
    activation_variance,
    chance_level,
    gradient_flow,
    initial_weights,
    inputs,
    loss_falls,
    lr_logged,
    modes,
    output_shape,
    overfits,
    overlap,
    scheduler_state,
    targets,
    validation_repeatable,
)
from caboose.checklist.verdict import Check

MODULES = (
    inputs,
    targets,
    output_shape,
    modes,
    chance_level,
    initial_weights,
    activation_variance,
    gradient_flow,
    loss_falls,
    overfits,
    overlap,
    validation_repeatable,
    scheduler_state,
    lr_logged,
)
CHECKS = tuple(Check(module.__name__.rpartition(".")[2], module.ASKS, module.run) for module in MODULES)
