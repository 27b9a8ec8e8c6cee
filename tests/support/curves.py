"""Runs as curves: a loss, a norm, a rate and validations, step by step, for rules that judge hundreds of steps.

    watched = Watch("divergence").over(views(flat(100, noise=0.02), ...))
    assert watched.only().severity == "warning"

Such runs are too long to be told message by message (see `scenario`); the rules see real aligned steps and regimes,
and the engine that runs them is the daemon's.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from caboose_daemon.config import Config
from caboose_daemon.incidents.episodes import Episode, EpisodeLog
from caboose_daemon.jobs.engine import Engine
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.finding import Finding
from caboose_daemon.steps.aligned import AlignedStep, combine
from caboose_daemon.steps.masked import LayerValues
from caboose_daemon.steps.regimes import RegimeTracker
from caboose_daemon.steps.view import JobView, RankView
from caboose_wire import Event, Layer, StepReport
from support.scenario import Noise, normal, watching

Float64 = NDArray[np.float64]
WEIGHTS = (Layer(name="blocks.0.weight", numel=4096, kind="Linear"),)
VISIBLE = frozenset({"loss", "lr", "gradients", "weights"})


def views(
    losses: ArrayLike,
    norms: ArrayLike | None = None,
    *,
    lr: ArrayLike | None = None,
    validations: Mapping[int, float | Mapping[str, float]] | None = None,
    declared: Mapping[int, str] | None = None,
    updates: Mapping[int, float | Sequence[float]] | None = None,
    num_samples: ArrayLike | None = None,
    metrics: Mapping[str, ArrayLike] | None = None,
    layers: Sequence[Layer] = WEIGHTS,
    visible: frozenset[str] = VISIBLE,
    is_resumed: bool = False,
    **about: Any,
) -> Iterator[JobView]:
    """A job of one rank as its rules see it; `validations`, `declared` and `updates` (the layers' update-to-weight
    ratios, on a sampled step) go by step. A NaN among the norms is a step on which nobody took one."""
    all_losses = np.asarray(losses, dtype=np.float64)
    all_norms = _column(norms, all_losses)
    all_rates = _column(lr, all_losses)
    all_samples = _column(num_samples, all_losses)
    regimes = RegimeTracker(is_resumed=is_resumed)
    like: dict[tuple[str, ...], AlignedStep] = {}
    for i, (loss, norm, rate, samples) in enumerate(
        zip(all_losses.tolist(), all_norms.tolist(), all_rates.tolist(), all_samples.tolist(), strict=True)
    ):
        arrays = {} if np.isnan(norm) else {"grad_norm": np.full(len(layers), norm, dtype=np.float32)}
        if updates is not None and i in updates:
            arrays["update_ratio"] = np.broadcast_to(np.float32(updates[i]), len(layers)).copy()
        report = StepReport(
            attempt=0,
            seq=i,
            step=i,
            model_step=i,
            time=float(i),
            loss=loss,
            lr=() if np.isnan(rate) else (rate,),
            num_samples=None if np.isnan(samples) else int(samples),
            is_sampled="update_ratio" in arrays,
            arrays=arrays,
            metrics={name: float(np.asarray(values)[i]) for name, values in (metrics or {}).items()},
        )
        step = _aligned(report, layers, like.get(tuple(arrays)))
        like[tuple(arrays)] = step
        events = tuple(_events(i, validations or {}, declared or {}))
        yield JobView(
            job="train",
            attempt=1,
            world=1,
            now=float(i),
            attempt_began=0.0,
            look_at_ranks=lambda i=i: {0: RankView(rank=0, state="live", last_seen=float(i))},
            layers=layers,
            groups=(),
            visible=visible,
            step=step,
            events=events,
            regime=regimes.observe(
                lr=rate if report.lr else None, num_samples=report.num_samples, step_seconds=None, events=events
            ),
            **about,
        )


def _aligned(report: StepReport, layers: Sequence[Layer], like: AlignedStep | None) -> AlignedStep:
    """The step of this report; made from one with the same arrays where there is one, which costs a tenth."""
    if like is None:
        return combine({0: report}, attempt=1, step=report.step, world=1, layers=layers)
    assert report.loss is not None
    norms = report.arrays.get("grad_norm")
    return msgspec.structs.replace(
        like,
        step=report.step,
        model_step=report.step,
        time=report.time,
        loss=np.array([report.loss]),
        mean_loss=report.loss,
        lr=report.lr,
        num_samples=report.num_samples,
        grad_norm=like.grad_norm if norms is None else float(np.sqrt(np.sum(np.square(norms, dtype=np.float64)))),
        layer_grad_norm=like.layer_grad_norm if norms is None else LayerValues.from_wire(norms.astype(np.float64)),
        reports={0: report},
        metrics=report.metrics,
    )


def _column(values: ArrayLike | None, losses: Float64) -> Float64:
    return np.full(len(losses), np.nan) if values is None else np.broadcast_to(np.asarray(values, float), losses.shape)


def _events(
    step: int, validations: Mapping[int, float | Mapping[str, float]], declared: Mapping[int, str]
) -> Iterator[Event]:
    if step in declared:
        yield Event(attempt=0, step=step, time=float(step), kind=declared[step])
    if step in validations:
        given = validations[step]
        fields = dict(given) if isinstance(given, Mapping) else {"loss": given}
        yield Event(attempt=0, step=step, time=float(step), kind="validation", fields=fields)


class Watch:
    """A rule (several, by their names; all, if none is named) that looks at a run, and what it has said so far."""

    def __init__(self, about: str = "", **thresholds: Any) -> None:
        config = Config().rules.get(about)
        self._configs = watching(about, {about: type(config)(**thresholds)} if config is not None else {})
        self._log = EpisodeLog()
        self._engine = Engine(RULES, self._configs, {}, self._log)
        self.findings: list[Finding] = []

    def over(self, run: Iterator[JobView], steps: int | None = None) -> "Watch":
        """Looks at the run, or at its next steps."""
        for view in itertools.islice(run, steps):
            for finding in self._engine.run(view, "step"):
                self.findings.append(finding)
                self._log.add(finding, 1, view.now)
        return self

    def restarted(self) -> "Watch":
        """The daemon is restarted: its rules know no more than the episodes that were open."""
        self._engine = Engine(RULES, self._configs, {}, self._log)
        self._engine.resume()
        return self

    @property
    def is_silent(self) -> bool:
        """Whether nothing was said."""
        return not self.findings

    @property
    def episodes(self) -> list[Episode]:
        """Oldest first."""
        return sorted(self._log, key=lambda episode: episode.id)

    def only(self) -> Episode:
        """The one episode there is."""
        (episode,) = self.episodes
        return episode

    def told(self) -> dict[str, str]:
        """The most urgent that each rule became, without what is only for the record."""
        worst: dict[str, str] = {}
        for episode in self.episodes:
            if episode.severity != "info" and worst.get(episode.rule) != "critical":
                worst[episode.rule] = str(episode.severity)
        return worst


# Shapes


def noisy(curve: ArrayLike, noise: float = 0.02, *, seed: int = 0, scatter: Noise = normal) -> Float64:
    """A curve with the scatter of its batches, as a share of its level."""
    values = np.asarray(curve, dtype=np.float64)
    return values * (1.0 + noise * scatter(np.random.default_rng(seed), len(values)))


def flat(steps: int, level: float = 2.0) -> Float64:
    """A loss that stands still."""
    return np.full(steps, level)


def falling(steps: int, start: float = 4.0, end: float = 1.5, memory: float = 200.0) -> Float64:
    """A loss that falls to its end level, fast at first."""
    return end + (start - end) * np.exp(-np.arange(steps) / memory)


def power_law(steps: int, start: float = 10.8, end: float = 2.2, power: float = 0.4) -> Float64:
    """The loss of a language model: it falls for ever, and ever more slowly."""
    return end + (start - end) * (1.0 + np.arange(steps) / 20.0) ** -power


def cosine(steps: int, peak: float = 3e-4, warmup: int = 200, floor: float = 0.1) -> Float64:
    """A learning rate that is warmed up, and then decays to a share of its peak."""
    at = np.arange(steps)
    down = floor + (1 - floor) * 0.5 * (1 + np.cos(np.pi * np.clip((at - warmup) / max(1, steps - warmup), 0, 1)))
    return peak * np.minimum((at + 1) / max(1, warmup), 1.0) * down
