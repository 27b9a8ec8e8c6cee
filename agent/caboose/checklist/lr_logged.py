"""lr_logged: whether the learning rates that will be reported are those that train the model."""

import math

from caboose.checklist.flight import Flight, number
from caboose.checklist.verdict import CheckResult, failed, passed, skipped, warned

ASKS = "Will the learning rate that trains be the one you see?"


def run(flight: Flight) -> CheckResult:
    """Checks the groups, and the scheduler's optimizer."""
    optimizers = flight.trial.optimizers
    if not optimizers:
        return skipped("no optimizer was given", "pass optimizer=")
    rates = [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]
    if not rates:
        return warned(
            "none",
            f"a {type(optimizers[0]).__name__} has no lr in its groups",
            "log its rate yourself: monitor.step(loss, metrics={'lr': ...})",
        )
    low, high = min(rates), max(rates)
    measured = number(high) if low == high else f"{number(low)}..{number(high)}"
    if any(not math.isfinite(rate) or rate < 0 for rate in rates):
        return failed(measured, f"a learning rate is {measured}", "give each group a rate above 0")
    served = getattr(flight.scheduler, "optimizer", None)
    if served is not None and all(served is not optimizer for optimizer in optimizers):
        return failed(
            measured,
            "the scheduler changes the rate of another optimizer: this one's would never change",
            "make the scheduler from the optimizer that trains",
        )
    bases = [float(g.get("initial_lr", g["lr"])) for o in optimizers for g in o.param_groups if "lr" in g]
    if high == 0.0 and max(bases) == 0.0:
        return failed(measured, "the learning rate is 0", "give the optimizer a rate")
    groups = "1 group" if len(rates) == 1 else f"{len(rates)} groups"
    return passed(measured, f"{groups}; caboose.attach(model, optimizer) reports each at every step")
