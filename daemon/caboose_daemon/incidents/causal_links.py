"""Which findings can have one cause: what each rule's condition is known to bring about, and how soon.

Design
------
Joining everything that happens at one time would hide two faults behind one; joining nothing pages ten times for one.
So the table below says, rule by rule, which others its condition brings about, and `are_kin` asks two things of a pair
of episodes: that one of the rules brings about the other, and that the times fit. What lasts explains what begins while
it lasts; what is found later but began earlier (a rule that needs a hundred steps to be sure) explains what began at
about its own onset. Episodes that name different ranks are different faults, however alike.

Numbers break for many reasons, so lasting alone is no ground to lay a break to something: a layer that collapsed
two thousand steps ago would take every later NaN for its own. A break is laid to what works at every step while it
lasts (`GOES_ON_BREAKING`), to what is on the same rank, and else only to what began or got worse shortly before.

The order of the table is from causes to symptoms: of findings made at one step, the first in it leads the incident.
"""

from collections.abc import Collection, Mapping

from caboose_daemon.incidents.episodes import Episode

BREAKS = frozenset({"loss_spike", "gradient_explosion", "divergence", "non_finite"})
"""What it looks like when the numbers of a run break."""
STANDS_STILL = frozenset({"not_learning", "plateau", "underfitting"})
"""What it looks like when a run gets nowhere."""

BRINGS_ABOUT: Mapping[str, frozenset[str]] = {
    "rank_silent": frozenset({"job_stalled", "throughput_regression"})
    | {"monitor_blind"},  # what a rank had not sent yet comes too late, or never
    "replica_desync": BREAKS | {"rank_outlier"},
    "rank_outlier": BREAKS,
    "bad_batch": BREAKS | {"rank_outlier", "activation_collapse"},
    "straggler": frozenset({"throughput_regression", "job_stalled"}),
    "data_starved": frozenset({"throughput_regression", "job_stalled", "straggler"}),
    "eval_mode": STANDS_STILL | {"overfitting", "metric_divergence"},
    "frozen_parameters": STANDS_STILL | {"lr_too_low", "gradient_vanishing"},
    "lr_schedule": BREAKS
    | STANDS_STILL
    | {"oscillation", "lr_too_high", "lr_too_low", "metric_divergence", "dead_units", "saturation"}
    | {"activation_collapse", "clipping", "frozen_parameters"},
    "loss_scale_collapse": STANDS_STILL | {"non_finite", "frozen_parameters", "lr_too_low"},
    "lr_too_high": BREAKS
    | STANDS_STILL
    | {"oscillation", "dead_units", "saturation", "activation_collapse", "clipping", "gradient_vanishing"}
    | {"frozen_parameters", "metric_divergence"},
    "lr_too_low": STANDS_STILL | {"metric_divergence"},
    "saturation": STANDS_STILL | {"gradient_vanishing"},
    "dead_units": STANDS_STILL | {"gradient_vanishing", "activation_collapse", "frozen_parameters"},
    "activation_collapse": BREAKS | STANDS_STILL | {"gradient_vanishing", "dead_units"},
    "gradient_vanishing": STANDS_STILL | {"frozen_parameters", "lr_too_low"},
    "gradient_explosion": BREAKS
    | STANDS_STILL
    | {"clipping", "loss_scale_collapse", "activation_collapse", "dead_units", "saturation", "oscillation"},
    "non_finite": BREAKS | {"loss_scale_collapse", "bad_batch", "not_learning", "frozen_parameters", "plateau"},
    "loss_spike": BREAKS | {"oscillation", "activation_collapse", "dead_units", "saturation", "plateau"},
    "divergence": BREAKS | {"oscillation", "dead_units", "saturation", "activation_collapse", "clipping", "plateau"},
    "clipping": STANDS_STILL | {"lr_too_low"},
    "batch_size": STANDS_STILL | {"oscillation", "lr_too_low"},
    "oscillation": frozenset({"plateau", "loss_spike", "clipping", "dead_units", "saturation", "activation_collapse"})
    | {"overfitting", "metric_divergence"},  # validation looks at wherever the weights have just swung to
    "not_learning": frozenset({"underfitting", "metric_divergence", "plateau"}),
    "plateau": frozenset({"underfitting", "metric_divergence"}),
    "metric_divergence": frozenset({"overfitting"}),
    "overfitting": frozenset({"metric_divergence"}),
    "underfitting": frozenset({"plateau"}),
    "throughput_regression": frozenset({"job_stalled"}),
    "job_stalled": frozenset(),
    "config_advice": frozenset(),
    "monitor_blind": frozenset(),
}
"""Each rule's likely consequences. Blindness has none; what advice bears on is in the next tables."""
GOES_ON_BREAKING = BREAKS | {"replica_desync", "bad_batch", "lr_too_high", "loss_scale_collapse", "oscillation"}
"""What can break numbers at any step for as long as it lasts: steps that are too large, replicas that train apart, one
bad batch after the other, a precision that overflows, and numbers that are broken already."""
STALLING_SCHEDULES: Mapping[str, frozenset[str]] = {
    "zero": STANDS_STILL | {"lr_too_low", "metric_divergence", "frozen_parameters"},
    "unmoved": STANDS_STILL | {"lr_too_low"},
}
"""What comes of a schedule that took the rate away, or never moved it (keys of its values): a run that gets nowhere.
What else is said of lr_schedule comes of jumps and resets."""
ADVICE = "config_advice"
SAYS_THE_SAME: Mapping[str, str] = {"high_lr": "lr_too_high", "low_lr": "lr_too_low"}
"""The rule that sees in the run what the advice saw in its settings: whenever that speaks, it is the same matter."""
WARNS_OF: Mapping[str, frozenset[str]] = {
    "high_lr": BRINGS_ABOUT["lr_too_high"] | {"loss_scale_collapse"},
    "low_lr": BRINGS_ABOUT["lr_too_low"],
    "fp16_without_scaler": BRINGS_ABOUT["loss_scale_collapse"] | {"loss_scale_collapse", "gradient_vanishing"},
    "no_clipping": BREAKS | {"loss_scale_collapse"},
    "no_warmup": BREAKS | {"lr_too_high", "oscillation", "loss_scale_collapse"},
}
"""What each piece of advice (a key of its values) warns of. Settings last as long as the run, which is no ground:
only what begins within a horizon of the start is laid to them."""
ORDER: Mapping[str, int] = {rule: place for place, rule in enumerate(BRINGS_ABOUT)}
HORIZON = 100
"""How far apart two onsets may lie, in steps as they are reported, where nothing lasts from one to the other."""


def are_kin(known: Episode, new: Episode, horizon: int) -> bool:
    """Whether the later told of two episodes can have the earlier one's cause."""
    if known.attempt != new.attempt or not agree(known.worst.ranks, new.worst.ranks):
        return False
    onset = new.first.onset_step
    if known.rule == new.rule:
        return onset <= known.last.step + horizon
    if ADVICE in (known.rule, new.rule):
        return _bears_on(*((known, new) if known.rule == ADVICE else (new, known)), horizon)
    if new.rule in _effects(known) and known.first.onset_step - horizon <= onset:
        doubt = min(new.told_step - onset, horizon)  # a rule that took long to be sure cannot date its onset better
        if new.rule in BREAKS and not _goes_on_breaking(known, new):
            return onset <= known.worst.step + horizon + doubt
        return known.is_open or onset <= known.last.step + horizon + doubt
    return known.rule in _effects(new) and onset <= known.told_step + horizon


def _effects(episode: Episode) -> frozenset[str]:
    """What its condition brings about, by its kind where the rule has kinds that do different harm."""
    kinds = STALLING_SCHEDULES.keys() & _values(episode).keys() if episode.rule == "lr_schedule" else ()
    return next((STALLING_SCHEDULES[kind] for kind in kinds), BRINGS_ABOUT.get(episode.rule, frozenset()))


def _goes_on_breaking(known: Episode, new: Episode) -> bool:
    """Whether it may break numbers long after it began: by its kind, or because it is the same rank's."""
    return known.rule in GOES_ON_BREAKING or not set(known.worst.ranks).isdisjoint(new.worst.ranks)


def _bears_on(advice: Episode, other: Episode, horizon: int) -> bool:
    is_early = other.first.onset_step <= advice.first.onset_step + horizon
    return any(
        other.rule == SAYS_THE_SAME.get(name) or (is_early and other.rule in WARNS_OF.get(name, ()))
        for name in _values(advice)
    )


def _values(episode: Episode) -> dict[str, float]:
    """Its numbers; the finding that ends an episode may have none."""
    return {**episode.worst.values, **episode.last.values}


def agree(ours: Collection[int], theirs: Collection[int]) -> bool:
    """Whether what names these ranks and what names those can be one fault; what names none can be any rank's."""
    return not ours or not theirs or not set(ours).isdisjoint(theirs)
