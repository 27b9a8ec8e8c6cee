"""The metrics of layers and of ranks, whose number is limited."""

from caboose_daemon.out.metrics.metric import Metric, Section, of_job
from caboose_daemon.steps.columns import RANK_COLUMNS

LAYER_STATISTICS = {
    "gradient_norm": "gradient norm before clipping",
    "weight_norm": "norm of the weights",
    "update_ratio": "size of the last update divided by the size of the weights",
    "activation_std": "standard deviation of the output of a module",
    "dead_units_ratio": "share of units whose output is 0 for every sample",
    "saturated_units_ratio": "share of units on the flat ends of sigmoid or tanh",
}
"""The statistics per layer or module, and their description."""
LAYER_TELLS = {
    "gradient_norm": "A steady fall towards depth 00: vanishing. One layer far above the others: start there.",
    "weight_norm": "Slow changes are normal.",
    "update_ratio": "About 1e-3 is normal. Above 1e-1 the learning rate is too high, below 1e-6 too low.",
    "activation_std": "Stable is normal. Near 0: collapsed. Growing with depth: badly scaled.",
    "dead_units_ratio": "Below 0.4 is normal.",
    "saturated_units_ratio": "High values in hidden layers block the gradients there.",
}

PART_STATISTICS = {
    "router_entropy_ratio": "entropy of the experts' shares of tokens, divided by that of equal shares",
    "router_dead_experts_ratio": "share of experts that got no token over the last samples",
    "attention_logit": "largest logit that the queries and keys of one head could give",
}
"""Likewise, of modules that few models have: routers of mixture-of-experts layers, and attentions."""
PART_TELLS = {
    "router_entropy_ratio": "1: all experts get the same. Below 0.6 few of them get nearly all tokens.",
    "router_dead_experts_ratio": "0 is normal. Above 0.3 a large part of the weights is not trained.",
    "attention_logit": "Stable is normal. Growing: the softmax becomes one-hot, and float16 overflows at 65,504.",
}


def _of_parts() -> tuple[Metric, ...]:
    entries = []
    for name, what in PART_STATISTICS.items():
        entries += [
            of_job(f"caboose_layer_{name}", f"Min, median and max over the modules: {what}", PART_TELLS[name], "stat"),
            of_job(f"caboose_worst_layer_{name}", f"The ten worst modules by name: {what}", PART_TELLS[name], "layer"),
        ]
    return tuple(entries)


def _of_layers() -> tuple[Metric, ...]:
    entries = []
    for name, what in LAYER_STATISTICS.items():
        tells = LAYER_TELLS[name]
        entries += [
            of_job(f"caboose_layer_{name}", f"Min, median and max over all layers: {what}", tells, "stat"),
            of_job(f"caboose_depth_{name}", f"Median per depth, in 32 parts: {what}", tells, "depth"),
            of_job(f"caboose_worst_layer_{name}", f"The ten worst layers by name: {what}", tells, "layer"),
        ]
    return tuple(entries)


LAYERS = Section(
    "Layers",
    "Every gauge holds the value that was measured last; `caboose_layer_age_steps` is its age. Gradients are measured"
    " on every step or every few, the rest with the samples. Depth 00 is the input side, 31 the output side, in the"
    " order in which the model registers its parameters. A layer enters the ten worst only if it is twice as bad as the"
    " one it replaces, and then stays for 15 minutes.",
    (
        *_of_layers(),
        *_of_parts(),
        of_job(
            "caboose_layer_age_steps",
            "Steps since the values of the layers were last measured: `gradient` or `sample`",
            "Below the interval of the measurements, by default 100 for samples. Growing: nothing is measured.",
            "stat",
        ),
    ),
)

RANKS = Section(
    "Ranks",
    "One series per rank and metric up to 512 ranks. Above that, the ten worst ranks of each, chosen as layers are.",
    (
        *(of_job(column.metric, column.help, column.tells, "rank", "host") for column in RANK_COLUMNS if column.metric),
        of_job(
            "caboose_rank_step",
            "Last step of one rank",
            "Equal on all ranks is normal. Behind the others: the rank is stuck.",
            "rank",
            "host",
        ),
        of_job(
            "caboose_rank_silent_seconds",
            "Time since the last message of one rank",
            "Below 10 s is normal. Growing: the rank is gone.",
            "rank",
            "host",
        ),
        of_job(
            "caboose_replicas_compared",
            "Replicas whose fingerprints were compared last",
            "Normal is the number of data-parallel replicas.",
        ),
        of_job("caboose_replicas_differing", "Replicas that differ from the majority", "Must be 0."),
    ),
)
