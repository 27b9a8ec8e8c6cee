"""Which episodes can have one cause: the known consequences of each rule's condition, and how soon they follow.

Design
------
Joining everything that happens at one time would hide two faults behind one; joining nothing would page ten times for
one fault. So the table below lists the consequences of each rule's condition, and `can_share_cause` asks two things of
a pair of episodes: that one rule's condition is a consequence of the other's, and that the times fit. A condition that
lasts explains what begins while it lasts. A condition that is found later but began earlier (a rule may need a hundred
steps to be sure) explains what began at about its own onset. Episodes that name different ranks are different faults.

Numbers break for many reasons, so a break is not attributed to a condition only because that lasts: a layer that
collapsed two thousand steps ago would explain every later NaN. A break is attributed to a condition that can cause it
at any step (`BREAKS_AT_ANY_STEP`), to one on the same rank, and else only to one that began or got worse shortly
before.

The table is ordered from causes to symptoms: of episodes found at one step, the first in this order leads the incident.
"""

from collections.abc import Collection, Mapping

from caboose_daemon.incidents.episodes import Episode

BREAKS = frozenset({"loss_spike", "gradient_explosion", "divergence", "non_finite"})
"""Rules that see the numbers of a run break."""
STANDS_STILL = frozenset({"not_learning", "plateau", "underfitting"})
"""Rules that see a run make no progress."""

IN_VALIDATION = frozenset({"overfitting", "generalisation_gap", "metric_divergence"})
"""Rules that compare the validation with the training: both change when the run does."""
WORSE_VALIDATION = frozenset({"overfitting", "generalisation_gap"})
"""Those that see it get worse. An evaluation that contradicts itself does so whatever breaks."""

IN_LAYERS = frozenset({"dead_units", "saturation", "activation_collapse", "gradient_vanishing"})
"""Rules about layers: what keeps a run from learning shows there, whenever a sample finds it."""

CONSEQUENCES: Mapping[str, frozenset[str]] = {
    "rank_silent": frozenset({"job_stalled", "throughput_regression"})
    | {"monitor_blind"},  # its last reports come too late, or never
    "replica_desync": BREAKS | {"rank_outlier"},
    "rank_outlier": BREAKS,
    "bad_batch": BREAKS | {"rank_outlier", "activation_collapse"},
    "straggler": frozenset({"throughput_regression", "job_stalled"}),
    "data_starved": frozenset({"throughput_regression", "job_stalled", "straggler"}),
    "eval_mode": STANDS_STILL | IN_VALIDATION,
    "frozen_parameters": STANDS_STILL
    | {"lr_too_low", "gradient_vanishing", "batch_size"}  # where little is trained, gradients are mostly noise
    | IN_VALIDATION
    | IN_LAYERS,
    "lr_schedule": BREAKS
    | STANDS_STILL
    | IN_VALIDATION
    | {"oscillation", "lr_too_high", "lr_too_low", "dead_units", "saturation"}
    | {"activation_collapse", "clipping", "frozen_parameters", "attention_logits", "embedding_growth"},
    "loss_scale_collapse": STANDS_STILL | {"non_finite", "frozen_parameters", "lr_too_low"},
    "lr_too_high": BREAKS
    | STANDS_STILL
    | {"oscillation", "dead_units", "saturation", "activation_collapse", "clipping", "gradient_vanishing"}
    | {"frozen_parameters", "metric_divergence", "attention_logits", "embedding_growth", "expert_collapse"},
    "lr_too_low": STANDS_STILL | {"metric_divergence"},
    "saturation": STANDS_STILL | {"gradient_vanishing"},
    "dead_units": STANDS_STILL | {"gradient_vanishing", "activation_collapse", "frozen_parameters"},
    "activation_collapse": BREAKS | STANDS_STILL | {"gradient_vanishing", "dead_units"},
    "expert_collapse": STANDS_STILL | {"frozen_parameters", "gradient_vanishing"},
    "attention_logits": BREAKS | STANDS_STILL | {"gradient_vanishing", "activation_collapse", "loss_scale_collapse"},
    "embedding_growth": BREAKS | {"activation_collapse", "plateau", "attention_logits", "loss_scale_collapse"},
    "gradient_vanishing": STANDS_STILL | {"frozen_parameters", "lr_too_low", "metric_divergence"},
    "gradient_explosion": BREAKS
    | STANDS_STILL
    | {"clipping", "loss_scale_collapse", "activation_collapse", "dead_units", "saturation", "oscillation"},
    "non_finite": BREAKS | {"loss_scale_collapse", "bad_batch", "not_learning", "frozen_parameters", "plateau"},
    "loss_spike": BREAKS
    | WORSE_VALIDATION
    | {"oscillation", "activation_collapse", "dead_units", "saturation", "plateau"},
    "divergence": BREAKS
    | WORSE_VALIDATION
    | {"oscillation", "dead_units", "saturation", "activation_collapse", "clipping", "plateau"},
    "clipping": STANDS_STILL | {"lr_too_low"},
    "batch_size": STANDS_STILL | {"oscillation", "lr_too_low"},
    "noise_growth": frozenset({"batch_size", "oscillation", "plateau"}),
    "oscillation": STANDS_STILL
    | {"loss_spike", "clipping", "dead_units", "saturation", "activation_collapse"}
    | IN_VALIDATION,  # a validation sees the weights in mid-swing
    "not_learning": frozenset({"underfitting", "metric_divergence", "plateau"}) | IN_LAYERS,
    "plateau": frozenset({"underfitting", "metric_divergence"}),
    "metric_divergence": frozenset({"overfitting", "generalisation_gap"}),
    "data_repetition": IN_VALIDATION,
    "overfitting": frozenset(
        {"metric_divergence", "generalisation_gap", "saturation", "data_repetition"}
    ),  # answers that are certain saturate units
    "generalisation_gap": frozenset({"overfitting", "metric_divergence"}),
    "underfitting": frozenset({"plateau"}),
    "memory_growth": frozenset({"throughput_regression", "job_stalled", "straggler", "rank_silent"}),
    "throughput_regression": frozenset({"job_stalled"}),
    "job_stalled": frozenset(),
    "config_advice": frozenset(),
    "monitor_blind": frozenset(),
}
"""Each rule's likely consequences. Those of config_advice are in `CONFIRMED_BY` and `WARNS_OF`."""
BREAKS_AT_ANY_STEP = BREAKS | {"replica_desync", "bad_batch", "lr_too_high", "loss_scale_collapse", "oscillation"}
"""Conditions that can break numbers at any step while they last: steps that are too large, replicas that diverge, bad
batches one after the other, a precision that overflows, and numbers that are broken already."""
STALLING_SCHEDULES: Mapping[str, frozenset[str]] = {
    "zero": STANDS_STILL | {"lr_too_low", "metric_divergence", "frozen_parameters"},
    "unmoved": STANDS_STILL | {"lr_too_low"},
}
"""Consequences of a learning rate that a schedule took to zero, or never moved (keys of the finding's values). Those of
jumps and resets are in `CONSEQUENCES`."""
ADVICE = "config_advice"
CONFIRMED_BY: Mapping[str, str] = {"high_lr": "lr_too_high", "low_lr": "lr_too_low"}
"""For each piece of advice, the rule that finds the same fault in the run: at any step, it has the same cause."""
WARNS_OF: Mapping[str, frozenset[str]] = {
    "high_lr": CONSEQUENCES["lr_too_high"] | {"loss_scale_collapse"},
    "low_lr": CONSEQUENCES["lr_too_low"],
    "high_eps": CONSEQUENCES["lr_too_low"] | {"lr_too_low"},
    "fp16_without_scaler": CONSEQUENCES["loss_scale_collapse"] | {"loss_scale_collapse", "gradient_vanishing"},
    "no_clipping": BREAKS | {"loss_scale_collapse"},
    "no_warmup": BREAKS | {"lr_too_high", "oscillation", "loss_scale_collapse"},
}
"""What each piece of advice (a key of the finding's values) warns of. Settings last as long as the run, so only what
begins within a horizon of the start is attributed to them."""
AT_ANY_STEP: Mapping[str, frozenset[str]] = {
    "high_lr": CONSEQUENCES["lr_too_high"] - {"non_finite"},
}
"""What acts at every step unsettles a run at any; a NaN after hundreds of good steps has a cause of its own."""
EXTREME: Mapping[str, frozenset[str]] = {
    "high_dropout": BREAKS
    | STANDS_STILL
    | {"metric_divergence", "batch_size", "lr_too_high", "clipping", "oscillation"},
    "high_momentum": CONSEQUENCES["lr_too_high"] | {"lr_too_high"},
    "initial_weights": CONSEQUENCES["lr_too_high"] | {"lr_too_high", "lr_too_low", "saturation", "oscillation"},
    "high_decay": STANDS_STILL
    | {"activation_collapse", "gradient_vanishing", "dead_units", "lr_too_high", "lr_too_low", "frozen_parameters"}
    | {"divergence", "loss_spike", "metric_divergence"},
    "norm_of_few": BREAKS
    | STANDS_STILL
    | {"oscillation", "clipping", "gradient_vanishing", "metric_divergence"}
    | {"overfitting", "generalisation_gap"},
    "kept_gradients": CONSEQUENCES["lr_too_high"]
    | {
        "lr_too_high",
        "lr_too_low",
        "gradient_explosion",
        "overfitting",
        "generalisation_gap",
        "loss_scale_collapse",
        "batch_size",
    },
    "no_steps": STANDS_STILL
    | {"lr_too_low", "frozen_parameters", "metric_divergence", "lr_schedule", "overfitting", "generalisation_gap"},
    "frozen_at_random": CONSEQUENCES["frozen_parameters"] | {"frozen_parameters", "overfitting", "generalisation_gap"},
    "lost_updates": STANDS_STILL | {"lr_too_low", "frozen_parameters", "metric_divergence"},
    "softmax_twice": STANDS_STILL
    | {"lr_too_low", "gradient_vanishing", "metric_divergence", "overfitting", "generalisation_gap"},
    "wrong_loss": CONSEQUENCES["lr_too_high"]
    | {"lr_too_high", "gradient_explosion", "overfitting", "generalisation_gap", "batch_size"},
    "large_inputs": CONSEQUENCES["lr_too_high"]
    | {"lr_too_high", "gradient_explosion", "lr_too_low", "overfitting", "generalisation_gap"},
    "linear": STANDS_STILL | {"metric_divergence"},
    "one_class": STANDS_STILL | IN_VALIDATION,
}
"""Likewise for values that hardly any run learns with: what they can cause is attributed to them at any step."""
ORDER: Mapping[str, int] = {rule: place for place, rule in enumerate(CONSEQUENCES)}
SINCE_THE_START = frozenset({"not_learning"})
"""Rules whose onset is the start of the run by definition, whatever keeps the run from learning, and since when."""
HORIZON = 100
"""How far apart two onsets may be, in reported steps, where no condition lasts from one to the other."""


def can_share_cause(known: Episode, new: Episode, horizon: int) -> bool:
    """Whether `new`, reported after `known`, can have the same cause."""
    if known.attempt != new.attempt or not ranks_overlap(known.worst.ranks, new.worst.ranks):
        return False
    onset = new.first.onset_step
    if known.rule == new.rule:
        return onset <= known.last.step + horizon
    if ADVICE in (known.rule, new.rule):
        return _is_explained_by_advice(*((known, new) if known.rule == ADVICE else (new, known)), horizon)
    if new.rule in _consequences(known) and (known.first.onset_step - horizon <= onset or _is_in_most(known, new)):
        # A rule that needed many steps to be sure dates its onset no better than that.
        doubt = min(new.reported_step - onset, horizon)
        if new.rule in BREAKS and not _can_break_late(known, new):
            return onset <= known.worst.step + horizon + doubt
        return known.is_open or onset <= known.last.step + horizon + doubt
    if known.rule not in _consequences(new):
        return False
    # A run that stands still already, and whose rate then ends, has one fault: its learning.
    return onset <= known.reported_step + horizon or (known.is_open and _is_stalling_schedule(new))


def _is_in_most(known: Episode, new: Episode) -> bool:
    """Whether `known` lasts since before the middle of the run that `new` judges as a whole."""
    return (
        new.rule in SINCE_THE_START
        and known.is_open
        and known.first.onset_step <= (new.first.onset_step + new.reported_step) / 2
    )


def _is_stalling_schedule(episode: Episode) -> bool:
    return episode.rule == "lr_schedule" and not STALLING_SCHEDULES.keys().isdisjoint(_values(episode))


def _consequences(episode: Episode) -> frozenset[str]:
    """What its condition can cause; for lr_schedule, by its kind."""
    kinds = STALLING_SCHEDULES.keys() & _values(episode).keys() if episode.rule == "lr_schedule" else ()
    return next((STALLING_SCHEDULES[kind] for kind in kinds), CONSEQUENCES.get(episode.rule, frozenset()))


def _can_break_late(known: Episode, new: Episode) -> bool:
    """Whether `known` can break numbers long after it began: by its rule, or because both name the same rank."""
    return known.rule in BREAKS_AT_ANY_STEP or not set(known.worst.ranks).isdisjoint(new.worst.ranks)


def _is_explained_by_advice(advice: Episode, other: Episode, horizon: int) -> bool:
    is_early = other.first.onset_step <= advice.first.onset_step + horizon
    return any(
        other.rule == CONFIRMED_BY.get(name)
        or other.rule in EXTREME.get(name, ())
        or other.rule in AT_ANY_STEP.get(name, ())
        or (is_early and other.rule in WARNS_OF.get(name, ()))
        for name in _values(advice)
    )


def _values(episode: Episode) -> dict[str, float]:
    """The values of the worst finding and of the last; the one that ends an episode may have none."""
    return {**episode.worst.values, **episode.last.values}


def ranks_overlap(ours: Collection[int], theirs: Collection[int]) -> bool:
    """Whether faults of these ranks can be one fault; no ranks means any rank."""
    return not ours or not theirs or not set(ours).isdisjoint(theirs)
