"""What to check beside the causes, where an answer points to code that no rule sees."""

from collections.abc import Iterator, Mapping

OWN_LOSS = (
    "your own loss: compare it with torch's on one batch, and look for log, division, sqrt and exp without a limit; "
    "`caboose inspect nan script.py:parts` names the operation that breaks first"
)
OWN_PREPARATION = (
    "your preprocessing: `caboose preflight script.py:parts` tests the range, NaN and the labels of the batches; use "
    "the training mean and standard deviation for validation too"
)
LARGE_INPUT = 10.0


def checks(answers: Mapping[str, float | str | bool]) -> Iterator[str]:
    """A line for each part of the user's code that the answers point to."""
    if answers.get("custom_loss") is True:
        yield OWN_LOSS
    largest = answers.get("largest_input")
    is_large = isinstance(largest, float) and largest > LARGE_INPUT
    if answers.get("prepared_differently") is True or is_large:
        yield OWN_PREPARATION
