"""What a cause is: something that brings an incident about, with a way to weigh it and advice on it.

Design
------
A cause names the rules it explains: it is weighed for an incident when it explains one of its members at least, and
whatever it leaves unexplained speaks against it. `weigh` looks at the case and gives evidence for and against, in
numbers where there are any; about what is not known it says nothing. `advise` may use the case to write the user's own
numbers into the line to change.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.evidence import Evidence
from caboose_daemon.incidents.diagnosis_record import Advice


class Cause(ABC):
    """Base of every cause; `id` is also the name of its file and its label in metrics."""

    id: ClassVar[str]
    title: ClassVar[str]
    """A few words for the head of a list: what is wrong, as one would say it to a colleague."""
    explains: ClassVar[frozenset[str]]
    """Rules whose findings it can bring about."""
    rarity: ClassVar[float] = 0.0
    """Log-odds to take away before anything is looked at: 1 for what is seen once in a few runs with these symptoms."""

    @abstractmethod
    def weigh(self, case: Case) -> Iterator[Evidence]:
        """What speaks for it and against it."""

    @abstractmethod
    def advise(self, case: Case) -> Advice:
        """What to do about it in this case."""
