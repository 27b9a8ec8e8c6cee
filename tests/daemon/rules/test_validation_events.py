"""Validations among a step's events: which number is the loss, and which of the others is the score."""

import math

import pytest

from caboose_daemon.rules.parts.validation import Validation, of_events
from caboose_wire import Event
from caboose_wire.fields import Scalar


def event(kind: str = "validation", **fields: Scalar) -> Event:
    return Event(attempt=0, step=1, time=0.0, kind=kind, fields=fields)


def test_only_validations_are_taken_in_their_order() -> None:
    events = [event(loss=2.0), event("checkpoint", loss=9.0), event(loss=1.0)]

    assert [validation.loss for validation in of_events(events)] == [2.0, 1.0]


def test_numbers_beside_the_loss_are_metrics_and_words_are_not() -> None:
    (validation,) = of_events([event(loss=1, accuracy=0.5, split="test")])

    assert validation == Validation(1.0, {"accuracy": 0.5})


def test_a_validation_without_a_loss_has_none() -> None:
    (validation,) = of_events([event(accuracy=0.5)])

    assert math.isnan(validation.loss)


ACCURACIES = ["accuracy", "acc", "val_acc", "val/acc", "valid.accuracy", "eval_accuracy", "evalAccuracy", "Top1-Acc"]
ACCURACIES += [
    "top1",
    "top-1",
    "val/top_1",
    "acc@1",
    "acc1",
    "prec@1",
    "val accuracy",
    "test/Accuracy",
    "balanced_accuracy",
]


@pytest.mark.parametrize(
    "name", [*ACCURACIES, "macro_f1", "F1", "f1-score", "bleu", "mAP50", "val/AUROC", "top5", "ROUGE-L"]
)
def test_a_score_is_known_by_a_word_of_its_name(name: str) -> None:
    assert Validation(1.0, {"perplexity": 3.0, name: 0.5}).score == (name, 0.5)


@pytest.mark.parametrize(
    "name", ["perplexity", "accumulated_error", "mapping", "time", "top1_error", "stop", "val_loss", "train_acc"]
)
def test_other_names_are_no_scores(name: str) -> None:
    assert Validation(1.0, {name: 0.5}).score is None


@pytest.mark.parametrize("name", ACCURACIES)
def test_an_accuracy_is_known_however_it_is_spelled(name: str) -> None:
    assert Validation(1.0, {"macro_f1": 0.1, name: 0.5}).accuracy == 0.5
    assert Validation(1.0, {name: 50.0}).accuracy == 0.5, "in percent"


@pytest.mark.parametrize("name", ["macro_f1", "top5", "acc@5", "top-5 accuracy", "precision", "top1_err", "auc"])
def test_other_scores_are_no_accuracy(name: str) -> None:
    assert Validation(1.0, {name: 0.5}).accuracy is None
