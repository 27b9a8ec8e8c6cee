"""The diseases: true causes, where each can occur, and how it does harm. `faults` has the function of each name."""

from dataclasses import dataclass

FAMILIES = (
    "mlp",
    "cnn",
    "lstm",
    "pre_ln",
    "post_ln",
    "autoencoder",
    "vae",
    "diffusion",
    "contrastive",
    "gan",
    "rl",
)
CLASSED = ("mlp", "cnn", "pre_ln", "post_ln")
"""Families that predict one of several classes."""
PAIRED = (*CLASSED, "lstm", "autoencoder", "contrastive")
"""Families with inputs and targets."""
REAL = ("mlp", "cnn", "autoencoder", "vae", "diffusion", "contrastive")
"""Families whose inputs are real numbers."""
SINGLE = tuple(family for family in FAMILIES if family != "gan")

LOOPS = ("plain", "accumulation", "amp", "ddp", "fsdp2", "trainer", "lightning")
RANKED = ("ddp", "fsdp2")
OWN = ("plain", "accumulation", "amp", "ddp", "fsdp2")
"""Loops that a person has written: what a framework does by itself cannot be forgotten in it."""


@dataclass(frozen=True, kw_only=True)
class Disease:
    """One disease."""

    name: str
    causes: tuple[str, ...]
    """The ids of causes that count as right, the truest first."""
    families: tuple[str, ...] = SINGLE
    loops: tuple[str, ...] = LOOPS
    optimizers: tuple[str, ...] = ()
    """Empty: any."""
    has_onset: bool = False
    """Whether it begins in the middle of the run."""
    harm: str = "quality"
    """How it hurts: quality (of the final model), peak (of the loss), time, validation (as it is reported),
    certain (a mistake whatever follows)."""
    has_ranks: bool = False
    """Whether it begins on one rank."""
    has_layers: bool = False
    """Whether it begins in layers that the run names."""
    variant: str = ""
    """A kind of base that it needs: norms (batch norms), warm_up, relu, scheduled. Empty: any."""


ADAPTIVE: dict[str, object] = {"optimizers": ("adam", "adamw", "lion")}


def _d(name: str, *causes: str, **fields: object) -> Disease:
    return Disease(name=name, causes=causes, **fields)  # type: ignore[arg-type]


DISEASES: tuple[Disease, ...] = (
    _d("lr_high", "lr_too_high", families=FAMILIES),
    _d("lr_jump", "schedule_jump", "lr_too_high", has_onset=True, harm="peak", loops=OWN),
    _d("lr_low", "lr_too_low"),
    _d("lr_decayed", "lr_decayed"),
    _d("batch_changed", "batch_too_small", "lr_too_high", has_onset=True, loops=OWN),
    _d("warm_up_missing", "lr_too_high", families=("post_ln", "pre_ln"), variant="warm_up"),
    _d("nan_log_zero", "log_of_zero", families=(*CLASSED, "vae"), loops=OWN, harm="peak"),
    _d("nan_overflow", "log_of_zero", "exploding_gradients", families=CLASSED, has_onset=True, harm="peak"),
    _d("nan_half", "fp16_overflow", families=("mlp", "cnn", "autoencoder"), loops=("plain",), harm="peak"),
    _d("nan_input", "input_not_finite", families=REAL, has_onset=True, harm="peak", has_ranks=True),
    _d("corrupt_batch", "outlier_batch", "data_changed", families=REAL, has_onset=True, harm="peak"),
    _d("data_changed", "data_changed", families=PAIRED, has_onset=True),
    _d("labels_shuffled", "labels_shuffled", families=PAIRED),
    _d("label_noise", "labels_shuffled", families=("mlp", "cnn")),
    _d("unnormalised", "unnormalised_input", families=REAL),
    _d("constant_input", "constant_input", "labels_shuffled", families=("mlp", "cnn", "autoencoder", "contrastive")),
    _d("no_zero_grad", "gradients_not_zeroed", loops=("plain", "amp", "ddp", "accumulation")),
    _d("softmax_twice", "softmax_twice", families=CLASSED),
    _d("no_nonlinearity", "too_little_capacity", families=("mlp", "autoencoder", "diffusion")),
    _d("dead_relu", "dying_relu", "bad_init", families=("mlp", "cnn", "autoencoder"), variant="relu", has_layers=True),
    _d("vanishing_depth", "vanishing_depth", "bad_init", families=("mlp", "autoencoder", "contrastive")),
    _d("init_large", "bad_init", "exploding_gradients", families=("mlp", "cnn", "autoencoder", "diffusion", "pre_ln")),
    _d("init_recurrent", "bad_init", "exploding_gradients", families=("lstm",)),
    _d("init_zero", "bad_init", "saddle", families=("mlp", "autoencoder", "diffusion", "lstm")),
    _d("frozen", "parameters_frozen", has_layers=True),
    _d(
        "detached",
        "graph_disconnected",
        "parameters_frozen",
        has_layers=True,
        families=("mlp", "cnn", "pre_ln", "lstm"),
    ),
    _d("unregistered", "parameters_unregistered", "parameters_frozen", has_layers=True, loops=OWN),
    _d(
        "eval_mode",
        "eval_mode_left_on",
        variant="norms",
        families=("mlp", "cnn", "autoencoder"),
        loops=OWN,
        has_onset=True,
    ),
    _d("norm_of_two", "batch_too_small", families=("mlp", "cnn", "autoencoder"), variant="norms"),
    _d("dropout_high", "over_regularised", families=("mlp", "cnn", "pre_ln", "post_ln", "autoencoder")),
    _d("overfitting", "memorising", "overconfident", families=("mlp", "cnn", "lstm", "pre_ln"), harm="validation"),
    _d("validation_shift", "validation_shift", families=("mlp", "cnn", "autoencoder"), harm="validation"),
    _d("oscillation", "lr_too_high", families=("mlp", "autoencoder", "lstm"), optimizers=("sgd", "momentum")),
    _d("clip_tight", "clip_too_tight", optimizers=("sgd", "momentum")),
    _d("decay_high", "weights_decay_away", "over_regularised"),
    _d(
        "bf16_updates",
        "precision_lost",
        families=(*CLASSED, "lstm", "autoencoder", "contrastive"),
        loops=("plain",),
        optimizers=("sgd", "momentum", "adam", "adamw", "lion"),
    ),
    _d("no_target_net", "bootstrapped_targets", families=("rl",)),
    _d("gan_collapse", "lr_too_high", "adversary_too_strong", families=("gan",)),
    _d("imbalance", "class_imbalance", families=("mlp", "cnn")),
    _d("memory_growth", "slowing_steps", "memory_pressure", loops=("plain", "amp", "ddp"), harm="time"),
    _d("slow_loader", "slow_loader", harm="time", has_onset=True),
    _d("slow_rank", "slow_rank", harm="time", loops=RANKED, has_ranks=True),
    _d("bad_rank", "bad_shard", families=REAL, loops=RANKED, has_ranks=True, has_onset=True, harm="peak"),
    _d(
        "schedule_restarted",
        "scheduler_not_restored",
        loops=("plain", "ddp"),
        has_onset=True,
        harm="certain",
        variant="scheduled",
    ),
    _d("momentum_high", "momentum_too_high", "lr_too_high", optimizers=("sgd", "momentum", "adam")),
    _d("attention_fast", "attention_unbounded", "lr_too_high", families=("pre_ln", "post_ln"), loops=OWN, **ADAPTIVE),
    _d("head_fast", "logits_drift", "lr_too_high", families=("pre_ln", "post_ln", "lstm"), loops=OWN, **ADAPTIVE),
)
NAMES = tuple(disease.name for disease in DISEASES)


def find(name: str) -> Disease:
    """The disease of that name; KeyError if there is none."""
    return {disease.name: disease for disease in DISEASES}[name]
