"""Of several parameter groups, the learning rate that stands for the run is that of the largest."""

import pytest

from caboose_wire import Group
from support.ranks import a_hello, a_report
from support.recorder import Core

EMBEDDING, MATRICES = Group("embedding", "AdamW", {}, 1_000), Group("matrices", "Muon", {}, 90_000)


@pytest.mark.parametrize(
    ("groups", "headline"),
    [
        ((EMBEDDING, MATRICES), 0.02),
        ((MATRICES, EMBEDDING), 0.2),
        ((Group("0", "SGD"), Group("1", "SGD")), 0.2),
        ((), 0.2),
    ],
    ids=["the second is larger", "the first is larger", "of an older agent", "unknown"],
)
def test_the_headline_is_the_rate_of_the_largest_group(groups: tuple[Group, ...], headline: float) -> None:
    core = Core()
    core.say(b"0", a_hello(world=1, groups=groups), 0.0)
    core.say(b"0", a_report(1, lr=(0.2, 0.02)), 1.0)
    core.pass_time(2.0)

    job = core.state.jobs["train"]
    assert job.recent[-1].lr == headline
    assert job.last is not None
    assert job.last.lr == (0.2, 0.02)
