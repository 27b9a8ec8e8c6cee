"""The base of causes: what can explain an incident, the evidence for and against it, and the advice on it.

Design
------
A cause names the rules it explains. It is weighed for an incident when it explains at least one of its members, and
every member that it leaves unexplained counts against it. `weigh` reads the case and yields evidence for and against,
with numbers where there are any; it yields nothing about what is unknown. `advise` may use the case to write the user's
own numbers into the line to change.

Weights of evidence are differences of log-odds, as in a naive Bayes classifier: an observation that is e times likelier
with the cause than without it weighs 1. Four sizes are enough; finer ones could not be justified.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import msgspec

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.incidents.diagnosis_record import Advice

SLIGHT = 0.5
FAIR = 1.2
STRONG = 2.5
DECISIVE = 4.0


class Evidence(msgspec.Struct, frozen=True):
    """One observation; `weight` is above 0 for the cause and below 0 against it."""

    text: str
    weight: float


def supports(weight: float, text: str) -> Evidence:
    return Evidence(text, weight)


def opposes(weight: float, text: str) -> Evidence:
    return Evidence(text, -weight)


class Cause(ABC):
    """Base of every cause; `id` is also the name of its file and its label in metrics."""

    id: ClassVar[str]
    title: ClassVar[str]
    """A short noun phrase for a list."""
    explains: ClassVar[frozenset[str]]
    """Rules whose findings it can cause."""
    is_plain: ClassVar[bool] = False
    """Whether its strong evidence is a fault in any run, with or without the symptoms that it explains: such a cause
    competes for other symptoms too."""
    rarity: ClassVar[float] = 0.0
    """Log-odds to subtract at the start: 1 for a cause that is seen once in a few runs with these symptoms."""

    @abstractmethod
    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The evidence for and against it."""

    @abstractmethod
    def advise(self, case: Case) -> Advice:
        """What to do about it in this case."""


def line_to_set(case: Case, name: str, value: str, was: str, *, is_change: bool = False) -> str:
    """A code line that sets a hyper-parameter; `is_change` for an operation on the present value, such as `/= 10`.

    Where the optimizer is unknown, as in a log, or there are several, the line changes the parameter groups: a guessed
    optimizer class would be the advice to change it.
    """
    comment = f"  # {was}" if was else ""
    if case.optimizer.isidentifier() and not is_change:
        kept = f"lr={case.lr:.3g}, " if name != "lr" and case.lr else ""
        return f"optimizer = {case.optimizer}(model.parameters(), {kept}{name}={value}){comment}"
    return f'for group in optimizer.param_groups: group["{name}"] {value if is_change else f"= {value}"}{comment}'


def line_to_set_dropout(case: Case, share: float) -> str:
    """A code line that sets every dropout of the model."""
    was = f"  # was {case.dropout:.2g}" if case.dropout is not None else ""
    return f"for m in model.modules(): isinstance(m, nn.Dropout) and setattr(m, 'p', {share:.2g}){was}"


def line_to_scale_lr(case: Case, lr: float | None, factor: float) -> str:
    """A code line that multiplies the learning rate, with the user's own number where it is known."""
    if lr:
        return line_to_set(case, "lr", f"{lr * factor:.2g}", f"was {lr:.2g}")
    return line_to_set(case, "lr", f"*= {factor:g}", "", is_change=True)
