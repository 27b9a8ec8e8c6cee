"""A condition that has to last, and to be gone for a while."""

from caboose_daemon.rules.parts.lasting import Lasting


def judged(lasting: Lasting, *verdicts: bool, first: int = 0) -> list[str]:
    return [lasting.judge(first + i, is_true) for i, is_true in enumerate(verdicts)]


def test_opens_when_it_has_lasted_and_knows_where_it_began() -> None:
    lasting = Lasting(persist=3, calm=2)

    assert judged(lasting, False, True, True, True) == ["quiet", "quiet", "quiet", "open"]
    assert lasting.onset == 1


def test_one_step_without_it_begins_the_count_anew() -> None:
    lasting = Lasting(persist=3, calm=2)

    assert judged(lasting, True, True, False, True, True) == ["quiet"] * 5
    assert lasting.onset == 3


def test_ends_when_it_has_been_gone_for_long_enough() -> None:
    lasting = Lasting(persist=1, calm=3)

    assert judged(lasting, True, False, False, True, False, False, False) == [*["open"] * 6, "resolved"]
    assert lasting.onset == 0, "it can be read once more"
    assert judged(lasting, False, first=7) == ["quiet"]
    assert lasting.onset is None


def test_what_follows_is_another_one() -> None:
    lasting = Lasting(persist=2, calm=1)
    judged(lasting, True, True, False)

    assert judged(lasting, True, True, first=3) == ["quiet", "open"]
    assert lasting.onset == 3


def test_goes_on_with_what_was_open_before_a_restart() -> None:
    lasting = Lasting(persist=100, calm=2)
    lasting.restore(onset=7)

    assert judged(lasting, True, False, first=50) == ["open", "open"]
    assert lasting.onset == 7
    assert judged(lasting, False, first=52) == ["resolved"]
