"""What would have told more about a case, and how to have it next time."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.incidents.causal_links import STANDS_STILL


def missing(case: Case) -> Iterator[str]:
    """A line for each thing that was not seen and matters for the incident's rules."""
    told = set(case.reportable_rules)
    if told & (STANDS_STILL | {"metric_divergence"}) and case.setting("num_classes") is None:
        yield "the number of classes: attach(..., num_classes=N) lets the loss be compared with chance"
    if told & STANDS_STILL and not case.has_validation:
        yield "validation: monitor.validation(loss) tells a run that has converged from one that is stuck"
    if told & {"overfitting", "metric_divergence"} and case.is_live and not _has_score(case):
        yield "a score: monitor.validation(loss, accuracy=...) tells a wrong model from one that is too sure"
    if told & {"overfitting", "underfitting"} and case.epochs_seen is None:
        yield "batch and dataset size: `for batch in monitor.watch(loader)` tells how often the data was seen"
    if told & {"data_starved"} and case.is_live and case.setting("num_workers") is None:
        yield "the loader's workers: hand the DataLoader itself to monitor.watch"
    if told & {"bad_batch", "loss_spike", "non_finite"} and case.is_live and not _sees_batches(case):
        yield "the batches: `for batch in monitor.watch(loader)` lets the batch of a spike be named"
    if told & (STANDS_STILL | {"frozen_parameters"}) and case.is_live and not case.sees("activations"):
        yield "activations: a compiled model is not looked into; a run without torch.compile would show dead layers"
    if not case.is_live:
        yield "a log holds curves only: the agent would have seen layers, ranks, updates and batches"


def _sees_batches(case: Case) -> bool:
    reports = () if case.sampled is None else case.sampled.reports.values()
    return case.setting("batch_size") is not None or any(report.batch is not None for report in reports)


def _has_score(case: Case) -> bool:
    return any(found.score is not None for _, found in case.validations)
