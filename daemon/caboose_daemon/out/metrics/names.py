"""Which names that came over the network may be labels of one job: so many of each kind in a day, and no more.

Design
------
Whatever an agent may choose (hosts, groups, its own validation metrics, what it cannot see) makes a series for as long
as Prometheus keeps it, and a process that introduces itself again and again can choose anew each time. So each kind of
name has a book of so many entries. One that is in it stays; when it is full, a new name is let in only for one that was
not used for a day. What is not let in has no series, or `other` where it merely describes; how many were left out of
a scrape is told.
"""

FORGET_SECONDS = 86_400.0
OTHER = "other"


class Names:
    """One job's books, by kind; a scrape begins with `begin`."""

    def __init__(self) -> None:
        self._books: dict[str, dict[tuple[str, ...], float]] = {}
        self._now = 0.0
        self.num_left_out = 0
        """Names left out of this scrape."""

    def begin(self, now: float) -> None:
        """A scrape begins: nothing was left out of it yet."""
        self._now = now
        self.num_left_out = 0

    def admit(self, kind: str, places: int, *name: str) -> bool:
        """Whether a name may be a label; one of several parts is as new as any of them."""
        book = self._books.setdefault(kind, {})
        # Kept in the order of their last use, so the first is the one to ask.
        if book.pop(name, None) is None and len(book) >= places:
            oldest = next(iter(book))
            if self._now - book[oldest] < FORGET_SECONDS:
                self.num_left_out += 1
                return False
            del book[oldest]
        book[name] = self._now
        return True

    def leave_out(self, num: int) -> None:
        """So many names have no series, because there are too many at once."""
        self.num_left_out += max(0, num)
