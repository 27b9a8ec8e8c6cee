"""What is wrong with a rank, its machine, its data or the batch: which cause leads, on what evidence, and when not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as changed

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.causes import CAUSES
from caboose_daemon.diagnosis.sample_history import MemoryUse
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.incidents.incident import Witness
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_wire import Layer
from support.cases import a_case, a_finding, order, told
from support.scenario import scenario
from support.summaries import lacks

LAYERS = tuple(Layer(name=f"layer{n}.weight", numel=64) for n in range(8))
SEES = frozenset({"loss", "gradients", "fingerprint", "local_gradients", "phases"})
OURS = {
    "bad_shard",
    "batch_too_large",
    "batch_too_small",
    "hardware_fault",
    "rank_failed",
    "rank_hung",
    "rank_killed",
    "slow_rank",
    "uneven_update",
}


def of_ranks(*findings: Finding, **changes: Any) -> Case:
    """A case of four ranks whose agents see all that matters here."""
    return a_case(*findings, **{"world": 4, "visible": SEES, "layers": LAYERS, **changes})


def on(case: Case, host: str, *ranks: int) -> Case:
    """The same, with the host of the first witness."""
    witness = Witness(rule=case.incident.rule, step=100, ranks=ranks, host=host)
    return replace(case, incident=changed(case.incident, witness=witness))


def heard_again(case: Case) -> Case:
    """The same, after the silence is over."""
    (member,) = case.incident.episodes
    last = changed(member.last, state="resolved", severity=Severity.INFO, summary="every rank is heard again")
    return replace(case, incident=changed(case.incident, episodes=(replace(member, is_open=False, last=last),)))


def an_outlier(**changes: Any) -> Finding:
    values = {"rank": 1.0, "loss_level": 2.0, "loss_distance": 0.5, "loss_scales": 3.0}
    return a_finding("rank_outlier", step=260, **{"ranks": (1,), "phase": "forward", "values": values, **changes})


def a_desync(*, layers: float = 1.0, odd: float = 1.0, last_equal: float = 80.0, **changes: Any) -> Finding:
    values = {"num_sampled": 2.0, "last_equal": last_equal, "odd_ranks": odd, "ranks": 4.0, "layers": layers}
    return a_finding("replica_desync", **{"ranks": (3,), "phase": "update", "values": values, **changes})


def a_silence(*, silent: float = 1.0, lost: float = 0.0, failed: float = 0.0, **changes: Any) -> Finding:
    values = {"silent_ranks": silent, "seconds": 12.0, "failed_ranks": failed, "ranks_that_lost_a_peer": lost}
    return a_finding("rank_silent", **{"ranks": (2,), "values": values, **changes})


def a_lag(phase: str = "forward", num_slow: float = 1.0) -> Finding:
    values = {"lag_share": 0.4, "lag_seconds": 0.02, "step_seconds": 0.05, "num_slow": num_slow}
    return a_finding("straggler", ranks=(2,), phase=phase, values=values)


def a_batch(ratio: float) -> Finding:
    return a_finding("batch_size", values={"ratio": ratio, "at_least": ratio, "signal": 1.0})


# One rank's data


def test_a_rank_apart_with_equal_weights_has_a_bad_shard() -> None:
    diagnosis = diagnose(on(of_ranks(an_outlier()), "node7", 1))

    assert order(diagnosis)[0] == "bad_shard"
    evidence = " ".join(told(diagnosis, "bad_shard").evidence_for)
    assert lacks(evidence, "rank 1 (node7) stays 0.5 above its peers' 2", "161 steps", "bit-identical") == []
    assert "rank=1" in told(diagnosis, "bad_shard").advice.code


def test_a_rank_apart_whose_weights_differ_is_not_explained_by_its_shard() -> None:
    diagnosis = diagnose(of_ranks(an_outlier(ranks=(3,)), a_desync()))

    assert order(diagnosis)[0] == "hardware_fault"
    assert "bad_shard" not in order(diagnosis)[:2]


def test_a_spike_without_a_rank_apart_is_no_bad_shard() -> None:
    assert "bad_shard" not in order(diagnose(of_ranks(a_finding("loss_spike"))))


# Replicas that came apart


def test_one_layer_on_one_rank_is_failing_hardware() -> None:
    diagnosis = diagnose(on(of_ranks(a_desync()), "node3", 3))

    assert order(diagnosis)[0] == "hardware_fault"
    said = told(diagnosis, "hardware_fault")
    assert lacks(said.evidence_for, "1 of 8 layers differ", "rank 3 (node3) differs, the other 3 agree") == []
    assert "up to step 80" in said.advice.first_fix
    assert 0.5 < said.confidence < 0.95


def test_every_layer_of_one_rank_is_an_update_that_was_not_made_everywhere() -> None:
    diagnosis = diagnose(of_ranks(a_desync(layers=8.0)))

    assert order(diagnosis)[0] == "uneven_update"
    assert lacks(told(diagnosis, "uneven_update").evidence_for, "8 of 8 layers differ") == []
    assert "hardware_fault" not in order(diagnosis)


def test_replicas_that_were_never_equal_began_so() -> None:
    diagnosis = diagnose(of_ranks(a_desync(layers=8.0, odd=0.0, last_equal=-1.0, ranks=())))

    assert order(diagnosis)[0] == "uneven_update"
    assert any("never equal" in text for text in told(diagnosis, "uneven_update").evidence_for)


def test_without_layers_to_count_neither_cause_of_a_desync_is_sure() -> None:
    diagnosis = diagnose(of_ranks(a_desync(layers=0.0)))

    assert all(cause.confidence < 0.5 for cause in diagnosis.causes)


# Ranks that are gone, or hang


def test_a_silent_rank_whose_peers_lost_it_was_killed() -> None:
    diagnosis = diagnose(of_ranks(a_silence(lost=3.0)))

    assert order(diagnosis)[0] == "rank_killed"
    assert lacks(told(diagnosis, "rank_killed").evidence_for, "3 peers lost the connection") == []
    assert "rank_hung" not in order(diagnosis)[:1]


def test_a_rank_that_is_heard_again_had_only_stopped() -> None:
    diagnosis = diagnose(heard_again(of_ranks(a_silence())))

    assert order(diagnosis)[0] == "rank_hung"
    assert any("came back" in text for text in told(diagnosis, "rank_hung").evidence_for)
    assert "rank_killed" not in order(diagnosis)


def test_a_rank_that_named_an_error_failed_by_itself() -> None:
    summary = "rank 2 on node2 left with an error at step 100: ValueError: bad sample"
    diagnosis = diagnose(of_ranks(a_silence(silent=3.0, failed=1.0, lost=1.0, summary=summary)))

    assert order(diagnosis)[0] == "rank_failed"
    assert summary in told(diagnosis, "rank_failed").evidence_for


def test_all_ranks_silent_at_once_stay_mostly_unknown() -> None:
    diagnosis = diagnose(of_ranks(a_silence(silent=4.0, ranks=(0, 1, 2, 3))))

    assert order(diagnosis)[0] == "rank_killed"
    assert diagnosis.causes[0].confidence < 0.75
    assert "rank_hung" not in order(diagnosis)[:1]


@pytest.mark.parametrize(("phase", "words"), [("data", "is waiting for data"), ("", "is a step behind")])
def test_the_rank_that_a_stalled_job_waits_for_hangs(phase: str, words: str) -> None:
    values = {"seconds": 125.0, "step_seconds": 0.5}
    diagnosis = diagnose(of_ranks(a_finding("job_stalled", ranks=(1,), phase=phase, values=values)))

    assert order(diagnosis)[0] == "rank_hung"
    assert any(words in text for text in told(diagnosis, "rank_hung").evidence_for)
    assert any("125 s" in text for text in told(diagnosis, "rank_hung").evidence_for)
    assert ("timeout=60" in told(diagnosis, "rank_hung").advice.code) is (phase == "data")


def test_a_stall_in_which_nobody_is_behind_is_less_sure() -> None:
    values = {"seconds": 125.0, "step_seconds": 0.5}
    diagnosis = diagnose(of_ranks(a_finding("job_stalled", values=values)))

    assert diagnosis.causes[0].id == "rank_hung"
    assert diagnosis.causes[0].confidence < 0.6


# Slow ranks


@pytest.mark.parametrize(("phase", "look"), [("data", "storage"), ("other", "logging"), ("forward", "hooks")])
def test_a_rank_that_the_others_wait_for_is_slow_where_its_time_goes(phase: str, look: str) -> None:
    diagnosis = diagnose(of_ranks(a_lag(phase)))

    assert order(diagnosis)[0] == "slow_rank"
    assert lacks(told(diagnosis, "slow_rank").evidence_for, "rank 2 is 20 ms slower", "50 ms per step") == []
    assert look in told(diagnosis, "slow_rank").advice.first_fix


@pytest.mark.parametrize("phase", ["loss", "other"])
def test_where_a_rank_runs_code_of_its_own_the_advice_is_about_that_code_and_not_its_machine(phase: str) -> None:
    advice = told(diagnose(of_ranks(a_lag(phase))), "slow_rank").advice

    assert "code that only this rank runs" in advice.first_fix
    assert not [word for word in ("clock", "cordon", "machine") if word in advice.first_fix]
    assert advice.code


def test_a_job_that_slowed_down_as_a_whole_has_no_slow_rank() -> None:
    for world in (1, 4):
        diagnosis = diagnose(of_ranks(a_finding("throughput_regression"), world=world))
        ours = [cause for cause in diagnosis.causes if cause.id in OURS]
        assert all(cause.confidence < 0.1 and cause.evidence_against for cause in ours), world


GIB = 2**30


def slowed(*host_gib: float, total: float | None = 64.0, **changes: Any) -> Case:
    """A job that slowed down at step 300, with what its ranks used of the host at each hundredth step."""
    steps = [0.1] * 300 + [0.25, 0.25, 0.25, 0.9] * 75
    facts = {} if total is None else {"host_memory_bytes": int(total * GIB)}
    use = [MemoryUse(1, 100 * (n + 1), int(gib * GIB)) for n, gib in enumerate(host_gib)]
    finding = a_finding("throughput_regression", 300, values={"ratio": 0.4})
    return of_ranks(finding, curves={"step_seconds": steps}, **{"facts": facts, "memory_use": use, **changes})


def test_a_host_whose_memory_is_nearly_used_up_slows_its_steps() -> None:
    diagnosis = diagnose(slowed(20, 30, 40, 50, 60, 62))

    said = told(diagnosis, "memory_pressure")
    assert order(diagnosis).index("memory_pressure") <= 1
    assert lacks(said.evidence_for, "97 % of host memory", "62 GiB", "from 20 to 62 GiB", "since step 100") == []
    assert any("uneven" in text for text in said.evidence_for)
    assert "swaps" in said.advice.first_fix
    assert "workers" in said.advice.avoid


def test_ranks_that_share_a_host_share_its_memory() -> None:
    facts = {"host_memory_bytes": 64 * GIB, "ranks_per_host": 8}
    said = told(diagnose(slowed(7.4, 7.5, 7.5, facts=facts)), "memory_pressure")
    assert lacks(said.evidence_for, "94 % of host memory", "7.5 GiB") == []


def test_a_device_that_is_nearly_full_wants_other_help_than_a_host() -> None:
    use = [MemoryUse(1, 100 * n, None, 78 * GIB) for n in range(1, 5)]
    said = told(diagnose(slowed(facts={"device_memory_bytes": 80 * GIB}, memory_use=use)), "memory_pressure")

    assert lacks(said.evidence_for, "98 % of device memory", "78 GiB") == []
    assert "checkpoint" in said.advice.code
    assert "empty_cache" in said.advice.avoid


def test_memory_with_room_or_that_stands_still_is_not_to_blame() -> None:
    room = diagnose(slowed(2.0, 2.0, 2.0, 2.0))
    assert "memory_pressure" not in order(room)
    assert "memory_pressure" not in order(diagnose(slowed(30, 30, 30, 30, total=None)))
    assert order(diagnose(slowed(4, 8, 12, 16)))[0] != "memory_pressure", "a leak with room is not yet pressure"


def test_without_a_number_memory_is_no_more_than_a_thought() -> None:
    causes = {cause.id: cause.confidence for cause in diagnose(slowed(total=None)).causes}

    assert causes.get("memory_pressure", 0.0) < 0.15


def test_a_straggler_that_uses_far_more_memory_than_its_peers_may_lack_it() -> None:
    story = scenario(ranks=4).plays(40, is_sampled=True, host_bytes=lambda rank, step: (9 if rank == 2 else 3) * GIB)
    assert [use.host for use in story.job.memory][-1] == 9 * GIB
    case = of_ranks(a_lag(), sampled=story.job.last_sampled, memory_use=list(story.job.memory)[-2:])

    assert "rank 2 uses 9 GiB of host memory, its peers 3 GiB" in told(diagnose(case), "memory_pressure").evidence_for


def test_where_all_ranks_wait_for_data_the_slow_one_is_doubted() -> None:
    alone = told(diagnose(of_ranks(a_lag("data"))), "slow_rank")
    among = told(diagnose(of_ranks(a_lag("data"), a_finding("data_starved"))), "slow_rank")

    assert among.confidence < alone.confidence
    assert any("most ranks wait" in text for text in among.evidence_against)


# Batches


def test_a_noise_scale_far_above_the_batch_is_told_with_the_batch_to_try() -> None:
    diagnosis = diagnose(of_ranks(a_batch(60.0), facts={"batch_size": 2}))

    assert order(diagnosis)[0] == "batch_too_small"
    said = told(diagnosis, "batch_too_small")
    assert lacks(said.evidence_for, "60x the batch of 8") == []
    assert "from 8 to 128 samples" in said.advice.first_fix
    assert "batch_too_large" not in order(diagnosis)


def test_a_batch_far_above_the_noise_scale_explains_a_rate_that_is_too_low_for_it() -> None:
    wasteful = changed(a_batch(0.02), severity=Severity.INFO)
    case = of_ranks(a_finding("lr_too_low"), wasteful, facts={"batch_size": 2048, "dataset_length": 50_000})
    diagnosis = diagnose(case)

    said = told(diagnosis, "batch_too_large")
    assert lacks(said.evidence_for, "batch of 8,192 is 50x", "6.1 updates per epoch of 50,000 samples") == []
    assert "batch_size=512)  # was 2048" in said.advice.code
    assert "batch_too_small" not in order(diagnosis)


@pytest.mark.parametrize("cause", ["batch_too_small", "batch_too_large"])
def test_a_plateau_without_a_word_on_the_batch_is_not_its_fault(cause: str) -> None:
    diagnosis = diagnose(of_ranks(a_finding("plateau"), facts={"batch_size": 64}))

    assert cause not in order(diagnosis)[:1]
    assert all(said.confidence < 0.2 for said in diagnosis.causes if said.id == cause)


# All of them


def test_every_cause_gives_a_fix_says_what_to_leave_and_how_to_see_that_it_helped() -> None:
    bare = of_ranks(a_finding("loss_spike"), layers=(), visible=frozenset())
    for cause in CAUSES:
        if cause.id in OURS:
            advice = cause.advise(bare)
            assert all((advice.first_fix, advice.avoid, advice.verify)), cause.id


def test_a_story_of_a_killed_rank_ends_with_its_cause() -> None:
    story = scenario(4, about="rank_silent").healthy(30).falls_silent(1)
    story.leaves(0, 2, 3, error="RuntimeError: Connection closed by peer [10.0.0.2]:4711").wait(15.0)

    (incident,) = story.job.incidents
    assert incident.witness is not None
    assert incident.witness.ranks == (1,)
    assert incident.diagnosis is not None
    assert order(incident.diagnosis)[0] == "rank_killed"


# Two ranks: no majority


@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize("rule", ["divergence", "loss_spike"])
def test_a_loss_that_rises_on_one_of_two_ranks_is_its_data_and_not_the_learning_rate(rule: str, world: int) -> None:
    draw = np.random.default_rng(0)
    low = 0.04 * (1 + 0.1 * draw.random(400))
    high = np.where(np.arange(400) < 299, low * 1.05, 2.4)
    losses = {"loss": (low + high) / 2, "loss_min": low, "loss_max": high, "lr": np.full(400, 1e-3)}
    diagnosis = diagnose(a_case(a_finding(rule, 300), curves=losses, world=world))

    assert order(diagnosis)[0] == "bad_shard"
    assert "lr_too_high" not in order(diagnosis)[:2]


def test_a_loss_that_rises_on_all_ranks_is_no_shard() -> None:
    low = np.where(np.arange(400) < 299, 0.04, 2.3)
    losses = {"loss": low, "loss_min": low, "loss_max": low * 1.05, "lr": np.full(400, 1e-3)}
    diagnosis = diagnose(a_case(a_finding("divergence", 300), curves=losses, world=2))

    assert "bad_shard" not in order(diagnosis)[:2]


def test_ranks_whose_weights_differ_have_other_losses_on_the_same_data() -> None:
    apart = {
        "loss": np.concatenate([np.full(150, 0.06), np.full(60, 0.7)]),
        "loss_min": np.concatenate([np.full(150, 0.05), np.full(60, 0.01)]),
        "loss_max": np.concatenate([np.full(150, 0.07), np.full(60, 1.2)]),
    }
    diagnosis = diagnose(
        of_ranks(
            a_desync(layers=8.0, odd=0.0, onset=151),
            a_finding("loss_spike", 152),
            a_finding("divergence", 156),
            curves=apart,
            world=2,
        )
    )

    assert order(diagnosis)[0] == "uneven_update"
    assert not {"bad_shard", "data_changed"} & set(order(diagnosis))
