"""Timelines for rule tests: a job's story told step by step, through the real core, without sockets or sleep.

    story = scenario(ranks=8).healthy(40).loss_spike(at=41, height=3.0).healthy(5)
    assert story.only("loss_spike").severity == "warning"

`scenario(about="loss_spike")` switches the other rules off: a story told for one rule may look ill to another.

`falling=2.0` begins at three times the level and learns, as most runs do; without it the loss stands at its level.

Every method plays its part at once and returns the scenario. `at` names the step where something happens; the
steps before it are healthy. Time is counted, never waited for.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.config import Config
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.jobs.pipeline import Sink
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.store import history
from caboose_daemon.store.journal import Journal
from caboose_wire import Bye, Event, Heartbeat, Hello, HelloRequest, Message
from support.ranks import LAYERS, a_hello, a_report
from support.recorder import Core

NORMS = np.linspace(0.1, 0.4, len(LAYERS))
NAN, INF = float("nan"), float("inf")
HEARTBEAT_SECONDS = 2.0
FALL_STEPS = 300
Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]


def normal(generator: np.random.Generator, size: int) -> NDArray[np.float64]:
    """The scatter of a large batch."""
    return generator.standard_normal(size)


def heavy_tailed(generator: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Student's t with three degrees of freedom: a scatter whose outliers are a part of normal life."""
    return generator.standard_t(3, size)


def watching(about: str, rules: Mapping[str, RuleConfig]) -> dict[str, RuleConfig]:
    """The configuration of a story about one rule (the others are switched off), or about all if none is named."""
    configs = {**Config().rules, **rules}
    return {
        name: config if not about or name in about.split() else replace(config, enabled=False)
        for name, config in configs.items()
    }


class JournaledCore(Core):
    """A core that keeps a journal, as a daemon does; whoever makes one closes it."""

    def __init__(self, path: Path, config: Config | None = None, **limits: Any) -> None:
        super().__init__(config)
        self._made_with = (path, config, limits)
        self.journal = Journal(path, self.state, **{"max_steps": 1_000_000, "retention_days": 90.0, **limits})
        self.join(Both(self.sink, self.journal))

    def commit(self, now: float) -> None:
        """Before commands go out, as in the loop."""
        self.journal.commit(now)
        self.journal.retention.advance(now)

    def restarted(self, now: float) -> "JournaledCore":
        """This daemon was killed after its last turn; the next one, from the same file."""
        self.close()
        path, config, limits = self._made_with
        core = JournaledCore(path, config, **limits)
        history.restore(path, core.state, core.pipeline, now)
        return core

    def execute(self, sql: str) -> sqlite3.Cursor:
        """Runs SQL on the journal's own connection: how tests damage or fill a journal."""
        return self.journal.database.connection.execute(sql)

    def close(self) -> None:
        """Closes the file without writing anything more, as death does."""
        self.journal.retention.stop()
        self.journal.database.close()


class Both:
    """A sink that hands everything to two others."""

    def __init__(self, first: Sink, second: Sink) -> None:
        self._sinks = (first, second)

    def __getattr__(self, name: str) -> Callable[..., None]:
        def tell(*arguments: Any) -> None:
            for sink in self._sinks:
                getattr(sink, name)(*arguments)

        return tell


def scenario(ranks: int = 4, **settings: Any) -> "Scenario":
    """A job that has just been launched."""
    return Scenario(ranks, **settings)


class Scenario:
    """One job, its time and its steps."""

    def __init__(
        self,
        ranks: int,
        *,
        about: str = "",
        rules: Mapping[str, RuleConfig] | None = None,
        level: float = 2.0,
        noise: float = 0.0,
        falling: float = 0.0,
        scatter: Noise = normal,
        seed: int = 0,
        step_seconds: float = 0.5,
        core: Core | None = None,
        joined: Sequence[int] | None = None,
        now: float = 1000.0,
        norms: Sequence[float] | NDArray[np.float64] = NORMS,
        **hello: Any,
    ) -> None:
        self.ranks = ranks
        self.norms = np.asarray(norms, dtype=np.float64)
        self._also: dict[str, Any] = {}
        self.core = core or Core(Config(rules=watching(about, rules or {})))
        self.level = level
        self.noise = noise
        self.falling = falling
        self.scatter = scatter
        self.random = np.random.default_rng(seed)
        self.step_seconds = step_seconds
        self.step = 0
        self.now = self.boundary = now
        self.heartbeats: dict[int, dict[str, Any]] = {}
        self.num_lost: dict[int, int] = {}
        self.talking = set(range(ranks) if joined is None else joined)
        self.hello = hello
        for rank in sorted(self.talking):
            self.says(rank, self.hello_of(rank))

    # What happens

    def healthy(self, steps: int) -> Self:
        """The run goes on as it should."""
        for _ in range(steps):
            self._play(self._losses())
        return self

    def plays(self, steps: int, **changes: Any) -> Self:
        """Healthy steps whose reports say what is named here: values, or functions of (rank, step)."""
        for _ in range(steps):
            self._play(self._losses(), changes=changes)
        return self

    def losses(self, *values: float) -> Self:
        """One step for each value, which all ranks report."""
        for value in values:
            self._play(np.full(self.ranks, value))
        return self

    def loss_spike(self, *, at: int, height: float, steps: int = 1, grad_height: float = 1.0) -> Self:
        """The loss stands at `height` times its level, and the gradient at `grad_height` times its own."""
        self.until(at)
        for _ in range(steps):
            self._play(self._losses() * height, grad_scale=grad_height)
        return self

    def nan_loss(self, *ranks: int, at: int, steps: int = 1, value: float = NAN, spreads: bool = False) -> Self:
        """The forward goes wrong on these ranks; `spreads`: and with it the gradient that all ranks share."""
        self.until(at)
        for _ in range(steps):
            losses = self._losses()
            losses[list(ranks)] = value
            self._play(losses, bad_layers=range(len(LAYERS)) if spreads else ())
        return self

    def nan_gradient(
        self,
        *layers: int,
        at: int,
        steps: int = 1,
        value: float = NAN,
        local: Mapping[int, Sequence[int]] | None = None,
    ) -> Self:
        """The reduced gradient of these layers goes wrong; `local`: where it did before, by rank, on a sampled step."""
        self.until(at)
        for _ in range(steps):
            self._play(self._losses(), bad_layers=layers, bad_value=value, bad_local=local)
        return self

    def gradients(self, *norms: float) -> Self:
        """From now on the layers' gradients have these norms."""
        self.norms = np.array(norms)
        return self

    def meanwhile(self, **fields: Any) -> Self:
        """From now on every report carries these as well; a function is asked for each rank; None takes one out."""
        self._also = {name: value for name, value in {**self._also, **fields}.items() if value is not None}
        return self

    def sampled(self, steps: int = 1, **arrays: Any) -> Self:
        """Steps that every rank looks at closely, and what it sees: arrays, or functions that are asked by rank."""
        for _ in range(steps):
            self._play(self._losses(), closely=arrays)
        return self

    def zero_loss(self, *, at: int, steps: int) -> Self:
        """The trainer prints 0.0."""
        return self.until(at).losses(*[0.0] * steps)

    def declares(self, kind: str) -> Self:
        """Rank 0 declares an event."""
        return self.says(0, Event(attempt=0, step=self.step, time=self.now, kind=kind))

    def says(self, rank: int, message: Message) -> Self:
        """A rank sends a message, and introduces itself if it is asked to."""
        assert not self.core.state.num_refused.keys() & {"shape", "layer_count"}, "the Hello names what is reported"
        peer = f"peer-{rank}".encode()
        for _, reply in self.core.say(peer, message, self.now):
            if isinstance(reply, HelloRequest):
                self.core.say(peer, self.hello_of(rank), self.now)
        return self

    def falls_silent(self, *ranks: int) -> Self:
        """Nothing more is heard from these."""
        self.talking -= set(ranks)
        return self

    def speaks(self, *ranks: int) -> Self:
        """These are heard again."""
        self.talking |= set(ranks)
        return self

    def joins(self, *ranks: int) -> Self:
        """These introduce themselves."""
        for rank in ranks:
            self.says(rank, self.hello_of(rank))
        return self.speaks(*ranks)

    def leaves(self, *ranks: int, error: str = "", signal: str = "") -> Self:
        """These send their Bye."""
        for rank in ranks:
            self.says(rank, Bye(step=self.step, error=error, signal=signal))
        return self.falls_silent(*ranks)

    def wait(self, seconds: float, *, every: float = 1.0) -> Self:
        """No step ends for a while; whoever talks sends heartbeats, and the daemon looks at its clock."""
        end = self.now + seconds
        next_beat = self.now + HEARTBEAT_SECONDS
        while self.now < end:
            self.now = min(self.now + every, end)
            if self.now >= next_beat:
                next_beat = self.now + HEARTBEAT_SECONDS
                for rank in sorted(self.talking):
                    self.says(rank, self.heartbeat(rank))
            self.core.pass_time(self.now)
        return self

    def beats(self, rank: int, **changes: Any) -> Self:
        """From now on this rank's heartbeats say what is named here."""
        self.heartbeats[rank] = changes
        return self

    def skips(self, rank: int, *, reports: int) -> Self:
        """So many reports of this rank are lost before its next one: its sequence has a gap."""
        self.num_lost[rank] = self.num_lost.get(rank, 0) + reports
        return self

    def daemon_sleeps(self, seconds: float) -> Self:
        """The daemon's machine is suspended: time goes by without it."""
        self.now += seconds
        self.core.pass_time(self.now)
        return self

    def daemon_restarts(self, seconds: float = 1.0) -> Self:
        """The daemon is gone for a while and comes back with what its journal kept."""
        assert isinstance(self.core, JournaledCore), "only a journal outlives a daemon"
        self.now += seconds
        self.core = self.core.restarted(self.now)
        return self

    def until(self, step: int) -> Self:
        """Healthy steps, so that the next one is `step`."""
        assert step > self.step, f"step {step} has been played"
        return self.healthy(step - 1 - self.step)

    # What was made of it

    @property
    def job(self) -> Job:
        """The job as the daemon has it."""
        (job,) = self.core.state.jobs.values()
        return job

    @property
    def members(self) -> dict[int, Member]:
        """The ranks of the current attempt."""
        assert self.job.attempt is not None
        return self.job.attempt.members

    @property
    def episodes(self) -> list[Episode]:
        """Every episode as it now stands, oldest first."""
        return list({episode.id: episode for episode in self.core.sink.episodes}.values())

    def of(self, rule: str) -> list[Episode]:
        """The episodes of one rule."""
        return [episode for episode in self.episodes if episode.rule == rule]

    def only(self, rule: str) -> Episode:
        """The one episode there is."""
        (episode,) = self.episodes
        assert episode.rule == rule
        return episode

    @property
    def is_silent(self) -> bool:
        """Whether no rule has said anything so far."""
        return not self.episodes

    def states(self, rule: str) -> list[str]:
        """What the rule called its findings, one after the other."""
        return [episode.last.state for episode in self.core.sink.episodes if episode.rule == rule]

    # How it is played

    def _losses(self) -> NDArray[np.float64]:
        level = self.level * (1.0 + self.falling * np.exp(-self.step / FALL_STEPS))
        return level * (1.0 + self.noise * self.scatter(self.random, self.ranks))

    def _play(
        self,
        losses: NDArray[np.float64],
        *,
        grad_scale: float = 1.0,
        bad_layers: Sequence[int] = (),
        bad_value: float = NAN,
        bad_local: Mapping[int, Sequence[int]] | None = None,
        changes: Mapping[str, Any] | None = None,
        closely: Mapping[str, Any] | None = None,
    ) -> None:
        self.step += 1
        self.now += self.step_seconds
        self.boundary = self.now
        norms = self.norms * grad_scale * np.exp(self.noise * self.scatter(self.random, 1))
        reduced = norms.astype(np.float32)
        reduced[list(bad_layers)] = bad_value
        for rank in sorted(self.talking):
            arrays = {"grad_norm": reduced}
            if bad_local is not None:
                arrays["local_grad_norm"] = norms.astype(np.float32)
                arrays["local_grad_norm"][list(bad_local.get(rank, ()))] = bad_value
            seq = self.step + self.num_lost.get(rank, 0)
            told = {name: _of(rank, value) for name, value in self._also.items()}
            attempt = self.hello.get("attempt", 0)
            fields: dict[str, Any] = {
                "attempt": attempt,
                "time": self.now,
                "seq": seq,
                "loss": float(losses[rank]),
                **told,
            }
            for name, value in (changes or {}).items():
                fields[name] = value(rank, self.step) if callable(value) else value
            if closely is not None:
                fields["is_sampled"] = True
                arrays |= {name: np.array(_of(rank, value), dtype=np.float32) for name, value in closely.items()}
            self.says(rank, a_report(self.step, **{"arrays": arrays, **fields}))
        self.core.pass_time(self.now)

    def heartbeat(self, rank: int) -> Heartbeat:
        """What a rank sends between steps."""
        fields: dict[str, Any] = {"step": self.step}
        fields["since_step_seconds"] = self.now - self.boundary
        return Heartbeat(**{**fields, **self.heartbeats.get(rank, {})})

    def hello_of(self, rank: int) -> Hello:
        """With what all ranks say of themselves in `hello`, which tests may change."""
        return a_hello(rank=rank, world=self.ranks, **self.hello)


def _of(rank: int, value: Any) -> Any:
    return value(rank) if callable(value) else value
