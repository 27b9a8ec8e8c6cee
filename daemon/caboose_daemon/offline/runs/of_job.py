"""Makes a `Run` of a job, from what a daemon or a journal answers in the API's shapes."""

from collections.abc import Mapping, Sequence

import numpy as np

from caboose_daemon.offline.runs.run import CURVES, Json, Run, numbers
from caboose_daemon.offline.runs.source import RunSource
from caboose_wire.fields import Scalar

MEASURED_FACTS = frozenset({"init_he_min", "init_he_max"})
"""Facts that are measured from the weights; they differ between runs with the same settings."""
NOT_SETTINGS = frozenset({"lr", "initial_lr", "params", "foreach", "fused", "capturable", "differentiable", "maximize"})
"""Keys of a parameter group that a schedule changes, or that do not affect results."""


def run_of_job(source: RunSource, job: str) -> Run:
    """The run as the source knows it now; RunError where it does not."""
    detail, series = source.detail(job), source.series(job, source.max_points)
    incidents, sample = source.incidents(job), source.latest_sample(job)
    columns = {key: numbers([row.get(key) for row in series]) for key in CURVES}
    rows = np.array([[row["attempt"], row["step"], row["num_bad"], row["num_steps"]] for row in series], dtype=np.int64)
    rows = rows.reshape(-1, 4)
    num_bad_losses = [row.get("num_bad_losses", row["num_bad"]) for row in series]  # older daemons do not report it
    blind = [f"{what}: {why}" for what, why in detail["blind"].items()]
    blind += [f"rule {rule} abstained: no {', '.join(what)}" for rule, what in detail["abstaining"].items()]
    if not detail["groups"]:
        blind.append("settings: an old journal without them, or no rank has reported yet")
    return Run(
        name=job,
        source=source.kind,
        where=source.where,
        attempts=rows[:, 0],
        steps=rows[:, 1],
        num_bad=rows[:, 2],
        num_bad_losses=np.array(num_bad_losses, dtype=np.int64),
        steps_per_row=int(rows[:, 3].max(initial=1)),
        curves={key: values for key, values in columns.items() if np.isfinite(values).any()},
        validations=tuple(validations(detail["events"])),
        updates=tuple((row["step"], row["ratio"]) for row in source.updates(job)),
        settings=settings(detail),
        state=detail["state"],
        detail=detail,
        cannot_see=tuple(blind),
        found=tuple(source.found(job, incidents)),
        incidents=tuple(sorted(incidents, key=lambda incident: incident["number"])),
        decisions=tuple(reversed(source.decisions(job))),
        ledger=tuple(source.ledger(job)),
        latest_sample=sample,
        layer_norms=layer_norms(sample),
    )


def layer_norms(sample: Json | None) -> dict[str, float]:
    """The gradient norm of each layer in the last sample."""
    if sample is None:
        return {}
    layers = sample["layers"]
    return {n: v for n, v in zip(layers["name"], layers["grad_norm"], strict=True) if isinstance(v, int | float)}


def validations(events: Sequence[Json]) -> list[tuple[int, float, Mapping[str, float]]]:
    """The evaluations among events."""
    found: list[tuple[int, float, Mapping[str, float]]] = []
    for event in events:
        if event["kind"] == "validation":
            numbered = {k: v for k, v in event["fields"].items() if isinstance(v, int | float)}
            found.append((int(event["step"]), float(numbered.pop("loss", np.nan)), numbered))
    return found


def settings(detail: Json) -> dict[str, Scalar]:
    """Facts, the optimizer's hyper-parameters and the user's own config, which wins."""
    result: dict[str, Scalar] = {"world": detail["world"]} if detail["world"] else {}
    if detail["wrapper"]:
        result["wrapper"] = detail["wrapper"]
    for place, group in enumerate(detail["groups"]):
        result.setdefault("optimizer", group["optimizer"])
        for key, value in group["settings"].items():
            if key not in NOT_SETTINGS:
                result.setdefault(key if not place else f"{key} (group {place})", value)
    facts = {key: value for key, value in detail["facts"].items() if key not in MEASURED_FACTS}
    result = {**facts, **result, **detail["config"]}
    return dict(sorted(result.items()))
