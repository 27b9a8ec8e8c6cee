"""What metric names mean: which metrics are better when higher, and which of those are an accuracy.

Trainers write one metric in many ways: `val_acc`, `val/acc`, `valid.accuracy`, `evalAccuracy`, `top-1`, `acc@1`. A name
is split into words, so that `mapping` is not `map`. A name with a word for errors is never a score.
"""

import re

_BETTER_WHEN_HIGHER = re.compile(
    r"(accuracy|acc|top|prec|precision|recall|hits?|ndcg|map|ap|mar|iou|miou|rouge[a-z]?|bleu|cider)\d*"
    r"|f\d|auc|auroc|auprc|roc|score|dice|jaccard|mrr|meteor|mcc|kappa|psnr|ssim|em"
)
_ACCURACY = re.compile(r"(accuracy|acc|top|prec)(\d*)")
_NEEDS_NUMBER = frozenset({"top", "prec"})
"""`top` alone means nothing; `prec@1` is an image classifier's accuracy, `prec` alone may be a precision."""
_TRAINING = frozenset({"train", "training"})
_EVALUATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_NOT = _TRAINING | frozenset({"error", "err", "errors", "loss", "time", "seconds"})
"""Words of metrics that are better when lower, or do not come from an evaluation."""


def is_score(name: str) -> bool:
    """Whether a metric of this name is better when higher."""
    words = _words(name)
    if _NOT & set(words):
        return False
    return any(
        _BETTER_WHEN_HIGHER.fullmatch(word) and (word != "top" or _number(words, at)) for at, word in enumerate(words)
    )


def is_accuracy(name: str) -> bool:
    """Whether it is the share of right answers, which is 1 / num_classes for a guess; top-5 is not."""
    words = _words(name)
    return not _NOT & set(words) and _has_accuracy(words)


def is_training_accuracy(name: str) -> bool:
    """Whether it is the share of right answers on training data, by its name."""
    words = _words(name)
    rest = [word for word in words if word not in _TRAINING]
    return len(rest) < len(words) and not _NOT & set(rest) and _has_accuracy(rest)


def is_of_evaluation(name: str) -> bool:
    """Whether the name says that a metric is not of training data."""
    return not _EVALUATION.isdisjoint(_words(name))


def _has_accuracy(words: list[str]) -> bool:
    for at, word in enumerate(words):
        found = _ACCURACY.fullmatch(word)
        if found is not None:
            number = found[2] or _number(words, at)
            return number == "1" or (not number and found[1] not in _NEEDS_NUMBER)
    return False


def _words(name: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name)  # evalAccuracy, but mAP is one word
    return [word for word in re.split(r"[^a-z0-9]+", apart.lower()) if word]


def _number(words: list[str], at: int) -> str:
    """The next word, where it is a number; else empty."""
    after = words[at + 1] if at + 1 < len(words) else ""
    return after if after.isdecimal() else ""
