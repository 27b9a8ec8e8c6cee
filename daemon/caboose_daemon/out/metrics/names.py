"""Limits how many different names from the network can become labels of one job in one day.

Design
------
Every name that an agent chooses (hosts, groups, validation metrics, blind spots) makes a series for as long as
Prometheus keeps it, and a process that reconnects can choose new names each time. So each kind of name has a list of
limited length. A name in the list stays. When the list is full, a new name replaces only one that was not used for a
day. A name that is not admitted has no series, or becomes `other` where it is only a description. The number of names
left out of a scrape is exported.
"""

FORGET_SECONDS = 86_400.0
OTHER = "other"


class Names:
    """The lists of one job, by kind of name. Every scrape starts with `begin`."""

    def __init__(self) -> None:
        self._books: dict[str, dict[tuple[str, ...], float]] = {}
        self._now = 0.0
        self.num_left_out = 0
        """Names left out of this scrape."""

    def begin(self, now: float) -> None:
        """Starts a scrape."""
        self._now = now
        self.num_left_out = 0

    def admit(self, kind: str, places: int, *name: str) -> bool:
        """Whether a name may be a label. A name of several parts is new if any part is."""
        book = self._books.setdefault(kind, {})
        # Entries are in the order of their last use, so the first one is the oldest.
        if book.pop(name, None) is None and len(book) >= places:
            oldest = next(iter(book))
            if self._now - book[oldest] < FORGET_SECONDS:
                self.num_left_out += 1
                return False
            del book[oldest]
        book[name] = self._now
        return True

    def leave_out(self, num: int) -> None:
        """Counts names without series, because there are too many at once."""
        self.num_left_out += max(0, num)
