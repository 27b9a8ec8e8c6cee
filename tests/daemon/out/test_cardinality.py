"""The cardinality contract: series per job are bounded by a constant, at every scrape and over a day, whoever sends."""

import time

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from caboose_daemon.jobs.state import State
from caboose_daemon.out.metrics.collector import MAX_JOBS, StateCollector
from caboose_daemon.out.metrics.incidents import MAX_A_DAY
from caboose_daemon.out.metrics.layers import NUM_WORST
from caboose_daemon.out.metrics.metric import MAX_TEXT
from caboose_daemon.out.metrics.names import FORGET_SECONDS, Names
from caboose_daemon.out.metrics.ranks import MAX_RANKS
from caboose_daemon.out.metrics.slots import HOLD_SECONDS, Slots
from caboose_wire import Bye, Event, Group, Heartbeat, Layer, Module
from caboose_wire.fields import Scalar
from support.ranks import a_hello, a_report
from support.recorder import Core


class Prometheus:
    """Scrapes, and remembers every series it has ever seen."""

    def __init__(self, state: State) -> None:
        self.now = 0.0
        self.registry = CollectorRegistry()
        self.registry.register(StateCollector(state, lambda: self.now))
        self.ever: set[str] = set()
        self.seconds: list[float] = []
        """Of CPU, that each scrape took."""

    def scrape(self, now: float) -> set[str]:
        """The series of one scrape."""
        self.now = now
        start = time.process_time()
        text = generate_latest(self.registry).decode()
        self.seconds.append(time.process_time() - start)
        series = {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
        self.ever |= series
        return series


def of_job(series: set[str], name: str) -> set[str]:
    return {line for line in series if f'training_job="{name}"' in line}


# Places


def chosen(slots: Slots, badness: dict[str, float], now: float) -> set[str]:
    names = list(badness)
    return {names[row] for row in slots.choose(names, np.array(list(badness.values())), now)}


def test_the_worst_take_the_places() -> None:
    assert chosen(Slots(2), {"a": 1.0, "b": 3.0, "c": 2.0}, 0.0) == {"b", "c"}


def test_a_holder_gives_way_only_after_its_time_and_only_to_one_twice_as_bad() -> None:
    slots = Slots(1)
    assert chosen(slots, {"a": 2.0, "b": 1.0}, 0.0) == {"a"}
    assert chosen(slots, {"a": 2.0, "b": 100.0}, HOLD_SECONDS - 1) == {"a"}
    assert chosen(slots, {"a": 2.0, "b": 3.9}, HOLD_SECONDS) == {"a"}
    assert chosen(slots, {"a": 2.0, "b": 4.0}, HOLD_SECONDS) == {"b"}


@pytest.mark.parametrize("level", [0.0, float("inf")])
def test_of_equals_nobody_takes_turns(level: float) -> None:
    slots = Slots(2)
    badness = dict.fromkeys("abcdef", level)
    held = chosen(slots, badness, 0.0)

    assert [chosen(slots, badness, number * HOLD_SECONDS) for number in range(1, 5)] == [held] * 4


def test_what_is_not_known_takes_no_place_and_what_is_not_finite_takes_the_first() -> None:
    badness = {"a": -1.0, "b": float("nan"), "c": float("inf"), "d": 5.0}
    assert chosen(Slots(1), badness, 0.0) == {"c"}
    assert chosen(Slots(4), badness, 0.0) == {"c", "d"}


def test_a_name_that_vanished_keeps_its_place_empty_until_its_time_is_over() -> None:
    slots = Slots(1)
    chosen(slots, {"a": 1.0}, 0.0)
    assert chosen(slots, {"b": 9.0}, HOLD_SECONDS - 1) == set()
    assert chosen(slots, {"b": 9.0}, HOLD_SECONDS) == {"b"}


def test_three_places_in_ten_change_hands_in_a_quarter_of_an_hour() -> None:
    slots = Slots(10)
    assert len(chosen(slots, {f"a{i}": 1.0 for i in range(10)}, 0.0)) == 10
    later = {f"a{i}": 1.0 for i in range(10)} | {f"b{i}": 100.0 for i in range(10)}

    assert sum(name.startswith("b") for name in chosen(slots, later, HOLD_SECONDS)) == 3
    assert sum(name.startswith("b") for name in chosen(slots, later, 2 * HOLD_SECONDS - 1)) == 3
    assert sum(name.startswith("b") for name in chosen(slots, later, 2 * HOLD_SECONDS)) == 6


# A large job over a day


@pytest.fixture
def large() -> Core:
    """4,096 ranks and 500 layers, all introduced."""
    core = Core()
    layers = tuple(Layer(f"blocks.{i}.weight", 4096, "Linear") for i in range(500))
    modules = tuple(Module(f"blocks.{i}.act", "ReLU", 512) for i in range(250))
    for rank in range(4096):
        hello = a_hello(rank=rank, world=4096, layers=layers, modules=modules, incarnation=f"incarnation-{rank}")
        core.say(b"%d" % rank, hello, 0.0)
    return core


def play(core: Core, step: int, random: np.random.Generator) -> None:
    """One sampled step of all ranks: every rank and layer another value, and others are the worst each time."""
    norms = random.lognormal(0.0, 2.0, 500).astype(np.float32)
    arrays = {
        "grad_norm": norms,
        "weight_norm": norms,
        "update_ratio": norms / 1000,
        "activation_std": random.lognormal(0.0, 2.0, 250).astype(np.float32),
        "activation_dead": random.random(250).astype(np.float32),
        "activation_saturated": random.random(250).astype(np.float32),
        "router_entropy": random.random(250).astype(np.float32),
        "router_dead": random.random(250).astype(np.float32),
        "attention_logit": random.lognormal(0.0, 2.0, 250).astype(np.float32),
    }
    losses = random.lognormal(1.0, 0.5, 4096)
    for rank in range(4096):
        # One rank in 64 looks closely, as where the work is divided; the rest say little.
        told = {"is_sampled": True, "arrays": arrays} if rank % 64 == 0 else {"arrays": {"grad_norm": norms}}
        core.say(b"%d" % rank, a_report(step, loss=float(losses[rank]), num_samples=8, **told), float(step))
    core.pass_time(float(step))


@pytest.mark.slow  # measures a time
def test_4096_ranks_and_500_layers_stay_under_4000_series_over_a_day_of_churn(large: Core) -> None:
    random = np.random.default_rng(0)
    prometheus = Prometheus(large.state)
    job = large.state.jobs["train"]
    play(large, 1, random)
    first = of_job(prometheus.scrape(0.0), "train")
    assert 300 < len(first) < 4000

    assert job.attempt is not None
    for minute in range(10, 24 * 60, 10):  # the state is what a scrape reads: no need to send 4,096 messages each time
        now = 60.0 * minute
        latest = job.meters.latest
        assert latest is not None
        for found in (*latest.layers.values(), *latest.modules.values()):
            found.values[:] = random.lognormal(0.0, 2.0, len(found))
        assert job.last is not None
        job.last.layer_grad_norm.values[:] = random.lognormal(0.0, 2.0, 500)
        if minute % 20 == 0:
            for member in job.attempt.members.values():
                member.numbers.loss, member.last_seen = float(random.lognormal()), now - float(random.random())
                member.numbers.step_seconds, member.step = float(random.random()), int(random.integers(1000))
        assert len(of_job(prometheus.scrape(now), "train")) < 4000

    ever = len(of_job(prometheus.ever, "train"))
    assert ever < 4000, "of all that were ever seen"
    usual = float(np.median(prometheus.seconds))  # of many: a machine with other things to do makes some of them slow
    assert usual < 0.150, f"a scrape took {usual:.3f} s of CPU"
    print(f"\n{len(first)} series at once, {ever} over the day; a scrape took {usual:.3f} s")


# Somebody who means harm


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_new_job_names_without_end_are_capped_and_counted() -> None:
    core = Core()
    prometheus = Prometheus(core.state)
    for number in range(1500):
        peer, now = b"%d" % number, 0.2 * number
        core.say(peer, a_hello(job=f"job-{number}", world=1, incarnation=f"incarnation-{number}"), now)
        core.say(
            peer,
            Bye(step=0),
            now,
        )
        if number % 100 == 99:
            core.pass_time(now)
            series = prometheus.scrape(now)
            assert len({line.split('training_job="')[1] for line in series if "caboose_job_up{" in line}) <= MAX_JOBS

    names = {line for line in prometheus.ever if line.startswith("caboose_job_up{")}
    assert MAX_JOBS / 2 < len(names) <= MAX_JOBS
    hidden = next(s for s in prometheus.scrape(301.0) if s.startswith("caboose_jobs_hidden"))
    assert hidden
    assert len(core.state.jobs) <= 1000


@pytest.mark.slow
@pytest.mark.long
def test_jobs_that_never_say_good_bye_are_capped_and_a_new_one_is_still_watched() -> None:
    core = Core()
    prometheus = Prometheus(core.state)
    for number in range(600):
        core.say(
            b"%d" % number, a_hello(job=f"evil-{number}", world=1, incarnation=f"incarnation-{number}"), 0.5 * number
        )
        if number % 20 == 19:
            core.pass_time(0.5 * number)
            prometheus.scrape(0.5 * number)
    assert len({line for line in prometheus.ever if line.startswith("caboose_job_up{")}) <= 1.3 * MAX_JOBS

    for now in (1300.0, 30 * 86_400.0):  # the quota of newcomers is for a quarter of an hour
        name = f"honest-{now:.0f}"
        core.say(name.encode(), a_hello(job=name, world=1, incarnation=f"incarnation-{name}"), now)
        core.pass_time(now)
        assert f'caboose_job_up{{training_job="{name}"}}' in prometheus.scrape(now)


@pytest.mark.long
@pytest.mark.slow
def test_a_job_in_trouble_has_a_place_before_one_that_runs_and_that_before_one_that_is_over() -> None:
    core = Core()
    prometheus = Prometheus(core.state)
    for number in range(MAX_JOBS):
        hello = a_hello(job=f"old-{number}", world=1, incarnation=f"incarnation-{number}")
        core.say(b"%d" % number, hello, 0.05 * number)
    prometheus.scrape(20.0)
    for name, now in (("ended", 60.0), ("running", 60.0)):
        core.say(name.encode(), a_hello(job=name, world=1, incarnation=f"incarnation-{name}"), now)
    core.say(
        b"ended",
        Bye(
            step=0,
        ),
        60.0,
    )
    assert of_job(prometheus.scrape(60.0), "running"), "the others are silent"
    assert not of_job(prometheus.scrape(60.0), "ended")

    for number in range(MAX_JOBS):
        core.say(
            b"%d" % number,
            Heartbeat(
                step=0,
            ),
            61.0,
        )
    core.say(b"ill", a_hello(job="ill", world=1, incarnation="incarnation-ill"), 61.0)
    for step in range(1, 8):
        core.say(b"ill", a_report(step, loss=float("nan")), 61.0 + step)
        core.pass_time(61.0 + step)
    assert core.state.jobs["ill"].health == "critical"
    assert of_job(prometheus.scrape(68.0), "ill"), "though all places are of jobs that run"


def test_new_layer_names_without_end_take_ten_places_in_a_quarter_of_an_hour() -> None:
    core = Core()
    prometheus = Prometheus(core.state)
    for number in range(60):
        layers = tuple(Layer(f"evil-{number}.{i}.weight", 10, "Linear") for i in range(4))
        core.say(b"peer", a_hello(world=1, layers=layers), float(number))
        core.say(b"peer", a_report(number + 1), float(number))
        core.pass_time(float(number))
        prometheus.scrape(float(number))

    assert len({line for line in prometheus.ever if "evil-" in line}) <= NUM_WORST


def test_every_name_an_agent_may_choose_is_bounded_in_a_day_and_what_is_left_out_is_counted() -> None:
    core = Core()
    prometheus = Prometheus(core.state)
    story = range(100)
    for number in story:
        now = 60.0 * number
        hello = a_hello(
            world=1,
            host=f"evil-host-{number}",
            wrapper=f"EvilWrapper{number}",
            facts={"optimizer": f"EvilOptimizer{number}", "precision": f"evil-{number}"},
            blind={f"evil-{number}-{i}": "so" for i in range(40)},
            groups=tuple(Group(f"evil-{number}-{i}", "AdamW") for i in range(20)),
            layers=tuple(Layer(f"evil-{number}.{i}.weight", 10, "Linear") for i in range(4)),
        )
        core.say(b"peer", hello, now)
        fields: dict[str, Scalar] = {f"evil-{number}-{i}": 0.5 for i in range(30)}
        core.say(
            b"peer", Event(attempt=0, step=number, time=now, kind="validation", fields={"loss": 1.0, **fields}), now
        )
        loss = float("nan") if number % 2 else 1.0
        core.say(b"peer", a_report(number + 1, loss=loss, lr=(0.1,) * 20), now)
        core.pass_time(now + 5.0)
        prometheus.scrape(now + 5.0)

    ever = of_job(prometheus.ever, "train")
    assert len({line for line in ever if "evil" in line}) < 700, "100 introductions with 100 names each"
    assert len(ever) < 1200
    text = generate_latest(prometheus.registry).decode()
    (hidden,) = (line for line in text.splitlines() if line.startswith("caboose_names_hidden{"))
    assert float(hidden.rpartition(" ")[2]) > 30
    assert 'caboose_rank_step{host="other",rank="0",training_job="train"} 100.0' in text, "it is still watched"


@pytest.mark.slow
@pytest.mark.long
def test_ranks_and_incidents_without_end_are_bounded_in_a_day() -> None:
    core = Core()
    prometheus = Prometheus(core.state)
    for number in range(1100):
        now, peer = 20.0 * number, b"%d" % number
        hello = a_hello(rank=number, world=4000, launch=f"run-{number}", incarnation=f"incarnation-{number}")
        core.say(peer, hello, now)
        core.say(peer, a_report(1, loss=float("nan")), now)
        core.pass_time(now + 3.0)
        prometheus.scrape(now + 3.0)
    assert core.state.jobs["train"].incidents.num_opened > 300

    ever = of_job(prometheus.ever, "train")
    assert len({line for line in ever if line.startswith("caboose_rank_step{")}) <= 2 * MAX_RANKS
    assert len({line for line in ever if line.startswith("caboose_incident_onset_step{")}) <= MAX_A_DAY
    assert len({line for line in ever if line.startswith("caboose_incident_info{")}) <= 3 * MAX_A_DAY
    words = {line for line in ever if line.startswith("caboose_incident_text{")}
    assert 0 < len(words) <= MAX_A_DAY
    assert max(map(len, words)) < 6 * MAX_TEXT


def test_names_that_were_not_used_for_a_day_give_way() -> None:
    names = Names()
    names.begin(0.0)
    assert [names.admit("group", 2, name) for name in ("a", "b", "c", "a")] == [True, True, False, True]
    assert names.num_left_out == 1
    assert names.admit("host", 2, "c"), "of another kind"

    names.begin(FORGET_SECONDS - 1)
    assert names.admit("group", 2, "a")
    assert not names.admit("group", 2, "c")
    names.begin(FORGET_SECONDS)
    assert names.admit("group", 2, "c"), "in the place of b"
    assert not names.admit("group", 2, "b")
