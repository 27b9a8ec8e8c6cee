"""replica_desync: who is the odd one out, in which layer, how urgent, and who is never blamed."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caboose_daemon.rules.replica_desync import ReplicaDesyncConfig
from support.ranks import LAYERS
from support.scenario import JournaledCore, Scenario
from support.scenario import scenario as of_all_rules
from support.seeds import seeds
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="replica_desync")

VISIBLE = ("loss", "gradients", "fingerprint")
EVERY = 10
"""How often the ranks of these stories look closely."""


def prints(odd: dict[int, dict[int, int]], *, blind: frozenset[int] = frozenset()) -> dict[str, Any]:
    """What reports say of replicas: by odd rank, how far each of its layers is off."""

    def is_sampled(rank: int, step: int) -> bool:
        return step % EVERY == 0

    def fingerprint(rank: int, step: int) -> int | None:
        if step % EVERY or rank in blind:
            return None
        return 10**12 + step + sum(off << layer for layer, off in odd.get(rank, {}).items())

    def arrays(rank: int, step: int) -> dict[str, np.ndarray]:
        if step % EVERY or rank in blind:
            return {}
        layers = np.arange(len(LAYERS), dtype=np.float32) + step
        for layer, off in odd.get(rank, {}).items():
            layers[layer] += off
        return {"layer_fingerprint": layers}

    return {"is_sampled": is_sampled, "fingerprint": fingerprint, "arrays": arrays}


def a_job(ranks: int = 4, **settings: Any) -> Scenario:
    """Thirty steps, three looks, all replicas equal."""
    return scenario(ranks, visible=VISIBLE, **settings).plays(30, **prints({}))


# The threshold: there is none


def test_is_silent_while_all_are_equal_and_speaks_at_the_first_look_that_differs() -> None:
    story = a_job()
    assert story.plays(9, **prints({3: {2: 1}})).is_silent

    episode = story.plays(1, **prints({3: {2: 1}})).only("replica_desync")
    assert (episode.first.step, episode.severity) == (40, "warning")
    assert (episode.first.ranks, episode.first.layers) == ((3,), ("blocks.2.weight",))
    assert (
        lacks(episode.first.summary, "rank 3 differs from the other 3", "blocks.2.weight", "last equal at step 30")
        == []
    )


def test_the_second_look_pages() -> None:
    story = a_job().plays(19, **prints({3: {2: 1}}))
    assert story.only("replica_desync").severity == "warning"

    assert story.plays(1, **prints({3: {2: 1}})).only("replica_desync").severity == "critical"


def test_the_number_of_looks_can_be_configured() -> None:
    rules = {"replica_desync": ReplicaDesyncConfig(critical_samples=4)}
    story = a_job(rules=rules).plays(30, **prints({3: {2: 1}}))
    assert story.only("replica_desync").severity == "warning"

    assert story.plays(10, **prints({3: {2: 1}})).only("replica_desync").severity == "critical"


def test_replicas_that_differ_from_the_start_say_so() -> None:
    story = scenario(4, visible=VISIBLE).plays(10, **prints({1: dict.fromkeys(range(4), 5)}))

    first = story.only("replica_desync").first
    assert (first.layers, first.values["layers"]) == (("blocks.0.weight",), 4)
    assert lacks(first.summary, "since step 10") == []


# Who is named


def test_of_two_ranks_none_is_blamed() -> None:
    first = a_job(2).plays(10, **prints({1: {3: 7}})).only("replica_desync").first

    assert (first.ranks, first.layers) == ((), ("blocks.3.weight",))
    assert lacks(first.summary, "2 ranks differ", "2 versions, no majority") == []


def test_a_tie_blames_none() -> None:
    first = a_job(4).plays(10, **prints({1: {3: 7}, 2: {3: 7}})).only("replica_desync").first

    assert first.ranks == ()


def test_a_minority_is_named_also_when_its_members_differ_among_themselves() -> None:
    first = a_job(8).plays(10, **prints({1: {3: 7}, 6: {0: 2}, 5: {0: 2}})).only("replica_desync").first

    assert (first.ranks, first.layers) == ((1, 5, 6), ("blocks.0.weight",))
    assert lacks(first.summary, "3 of 8 ranks", "(1, 5, 6)") == []


def test_the_majority_counts_among_those_that_looked() -> None:
    first = a_job(8).plays(10, **prints({7: {1: 1}}, blind=frozenset({0, 1, 2, 3, 4}))).only("replica_desync").first

    assert first.ranks == (7,)


# Recovery


def test_is_over_when_all_ranks_are_equal_again() -> None:
    story = a_job().plays(20, **prints({3: {2: 1}})).plays(10, **prints({}))

    episode = story.only("replica_desync")
    assert (episode.is_open, episode.last.state) == (False, "resolved")
    assert story.plays(50, **prints({})).only("replica_desync").num_findings == episode.num_findings


def test_stays_open_while_only_some_ranks_are_seen_to_agree() -> None:
    story = a_job().plays(20, **prints({3: {2: 1}})).plays(50, **prints({}, blind=frozenset({3})))

    assert story.only("replica_desync").is_open


def test_a_restarted_daemon_takes_it_up_again(tmp_path: Path) -> None:
    core = JournaledCore(tmp_path / "journal")
    story = a_job(core=core).plays(10, **prints({3: {2: 1}})).wait(2.0).daemon_restarts().wait(3.0)
    story.plays(10, **prints({3: {2: 1}}))

    (episode,) = story.job.episodes
    assert (episode.severity, episode.first.onset_step) == ("critical", 40)
    story.core.close()  # type: ignore[attr-defined]  # a journaled core


# Look-alikes and blindness


def test_shards_send_no_fingerprint_and_are_not_compared() -> None:
    story = scenario(4, visible=("loss", "gradients")).plays(50, **prints({3: {2: 1}}))

    assert story.is_silent


def test_replicas_that_drift_apart_on_purpose_are_declared() -> None:
    drifting = prints({rank: {0: rank} for rank in range(8)})

    assert scenario(8, visible=VISIBLE, config={"local_sgd": True}).plays(100, **drifting).is_silent


def test_one_rank_alone_has_nobody_to_differ_from() -> None:
    assert a_job(4).plays(50, **prints({0: {1: 1}}, blind=frozenset({1, 2, 3}))).is_silent


@pytest.mark.parametrize("seed", seeds(2))
def test_a_long_noisy_healthy_run_is_silent(seed: int) -> None:
    story = scenario(4, about="replica_desync", visible=VISIBLE, noise=0.1, seed=seed).plays(2000, **prints({}))

    assert story.is_silent
