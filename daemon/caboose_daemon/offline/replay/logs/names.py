"""What loggers call the step and the four quantities that the rules read.

Design
------
For each quantity the names are in order of preference: a value per step comes before the mean of an epoch, and a
trainer's own step before the logger's count of its calls (W&B's `_step`). Capitals, blanks, dots and hyphens make
no difference. A chart exported from W&B's page calls its columns `<run> - <name>`; that counts when no other does.
"""

import difflib
import re
from collections.abc import Iterable

USED = ("loss", "grad_norm", "lr", "val_loss")
"""The quantities known to the rules, by the names a `Log` gives them."""

NAMES: dict[str, tuple[str, ...]] = {
    "step": (
        *("step", "global_step", "train/global_step", "trainer/global_step", "train/step", "train_step", "steps"),
        *("training_step", "optimizer_step", "num_updates", "update", "updates", "iteration", "iterations", "iter"),
        *("train/iteration", "train/iter", "train_iter", "num_steps", "it", "_step"),
    ),
    "loss": (
        *("loss", "train/loss", "train_loss_step", "train/loss_step", "train/train_loss_step", "training/loss"),
        *("loss/train", "loss_step", "train_loss", "training_loss", "trainloss", "loss_train", "loss/training"),
        *("loss/train/total", "total_loss", "train/total_loss", "loss/total", "loss_total", "lm_loss", "train/lm_loss"),
        *("train/samples/train_loss", "loss_metrics/global_avg_loss", "train/ce_loss", "train/crossentropyloss"),
        *(
            "loss/mean",
            "train/train_loss",
            "batch_loss",
            "train_batch_loss",
            "train_loss_epoch",
            "train/loss_epoch",
            "loss_epoch",
        ),
    ),
    "grad_norm": (
        *(
            "grad_norm",
            "train/grad_norm",
            "gradient_norm",
            "train/gradient_norm",
            "grad_norm_step",
            "training/grad_norm",
        ),
        *("train_grad_norm", "gnorm", "train/gnorm", "gradnorm", "total_grad_norm", "optim/total_grad_norm"),
        *(
            "global_grad_norm",
            "train/global_grad_norm",
            "grad_2.0_norm_total",
            "grad_norm/total",
            "l2_norm/grad/global",
        ),
        *(
            "gradient/norm",
            "grad/norm",
            "grads/norm",
            "gradients/norm",
            "grad_norm_total",
            "norm/grad",
            "grad_norm_epoch",
        ),
    ),
    "lr": (
        *("lr", "learning_rate", "train/lr", "train/learning_rate", "training/lr", "training/learning_rate"),
        *("train_lr", "optim/lr", "optim/learning_rate", "optimizer/lr", "lr/group0", "lr/pg0", "lr_0", "lr0"),
        *(
            "lr/group_0",
            "learning_rate/0",
            "learning_rate/group_0",
            "optim/learning_rate_group0",
            "optim/lr_(group_0)",
            "train/samples/lr",
            "lr_step",
            "current_lr",
            "base_lr",
        ),
    ),
    "val_loss": (
        *("val_loss", "val/loss", "eval_loss", "eval/loss", "valid_loss", "valid/loss", "validation_loss"),
        *("validation/loss", "val_loss_epoch", "val/loss_epoch", "val/val_loss", "eval/eval_loss", "loss/val"),
        *("loss/valid", "loss/validation", "loss/eval", "loss_val", "loss_valid", "loss_eval", "dev_loss", "dev/loss"),
        *("val_loss/dataloader_idx_0", "lm_loss_validation", "valloss", "val_loss_step", "loss/test", "test/loss"),
        *("test_loss",),
    ),
}

CLOCKS = frozenset(
    {"epoch", "train/epoch", "time", "timestamp", "_timestamp", "_runtime", "wall_time", "walltime", "elapsed", "date"}
    | {"created_at", "relative_time", "runtime", "elapsed_time"}
)
"""Columns with the time at which a row was written."""


SPLITS = ("split", "mode", "phase", "stage", "subset")
"""Columns of text that mark a row as training or validation."""
VALIDATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "dev", "test"})


def _normal(name: str) -> str:
    return re.sub(r"[\s\-]+|\.(?!\d)", "_", name.strip().lower())


_PLACES = {wanted: {alias: place for place, alias in enumerate(names)} for wanted, names in NAMES.items()}
_ANY = frozenset(alias for names in NAMES.values() for alias in names)
_OF_OPTIMIZER = re.compile(r"lr_[a-z0-9]+(/.*)?|(lr|learning_rate)/[^/]+")
"""Lightning's LearningRateMonitor and Composer: `lr-AdamW`, `lr-AdamW/pg1`; and of each group: `lr/group_1`."""
_OF_MIRROR = {"speed/step_seconds": "step_seconds", "speed/data_seconds": "data_seconds"}
"""What Caboose's own mirrors call quantities that a replay reads under other names."""
_OF_LAYER = re.compile(r"(?:grad_norm|gradient_norm|grad/norm|grads|gradients)/(?!total$|norm$|all$|global$)(.+)")


def of_mirror(name: str) -> str:
    """The name under which a replay reads a column."""
    return _OF_MIRROR.get(name, name)


def layer_of(name: str) -> str:
    """The layer whose gradient norm a column is; empty for other columns."""
    found = _OF_LAYER.fullmatch(name)
    return found.group(1) if found is not None else ""


def candidates(wanted: str, names: Iterable[str]) -> list[str]:
    """The columns of a file that mean a quantity, the best first."""
    places = _PLACES[wanted]
    found = []
    charted = []
    for name in names:
        normal = _normal(name)
        if normal in places:
            found.append((places[normal], name != normal, name))
        elif wanted == "lr" and _OF_OPTIMIZER.fullmatch(normal):
            found.append((len(places), False, name))
        elif " - " in name and (last := _normal(name.rpartition(" - ")[2])) in places:
            charted.append((places[last], False, name))
    return [name for _, _, name in sorted(found or charted, key=lambda entry: entry[:2])]


def is_known(name: str) -> bool:
    """Whether a column may be the step or a quantity that the rules read."""
    normal = _normal(name)
    return normal in _ANY or normal.startswith("lr_") or " - " in name


def is_clock(name: str) -> bool:
    """Whether a column has the time of writing, which may differ between two rows of one step."""
    return _normal(name) in CLOCKS


def nearest(wanted: str, names: Iterable[str]) -> str | None:
    """The column whose name is closest to a known name of a quantity."""
    by_normal = {_normal(name): name for name in names if not is_known(name)}
    best: tuple[float, str] | None = None
    for alias in NAMES[wanted]:
        for near in difflib.get_close_matches(alias, by_normal, n=1, cutoff=0.6):
            score = difflib.SequenceMatcher(None, alias, near).ratio()
            if best is None or score > best[0]:
                best = (score, by_normal[near])
    return best[1] if best is not None else None
