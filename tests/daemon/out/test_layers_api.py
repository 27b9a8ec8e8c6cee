"""The JSON API of the layers over time, and the word that a new sample is there."""

import math
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from caboose_wire import Layer, Module
from support.http import http
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_report, simulated_ranks

LAYERS = tuple(Layer(name=f"blocks.{i}.weight", numel=100 * (i + 1), kind="Linear") for i in range(6))
MODULES = (Module(name="blocks.0", kind="Linear", num_units=4), Module(name="0", kind="Tanh", num_units=2))
WEIGHTS = np.arange(1.0, 7.0, dtype=np.float32)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Asks a daemon with two jobs: one that was looked at at steps 10, 20 and 30, one that never was."""
    hello = {"layers": LAYERS, "modules": MODULES, "blind": {"weights": "not understood"}}
    with (
        running_daemon(tmp_path_factory.mktemp("layers")) as daemon,
        simulated_ranks(daemon.endpoint, 1, {"job": "train", **hello}) as (rank,),
        simulated_ranks(daemon.endpoint, 1, {"job": "new", "blind": {"activations": "compiled"}}) as (other,),
        httpx.Client(base_url=f"{daemon.url}api/v1/jobs/", timeout=10) as client,
    ):
        for step in range(1, 33):
            norms = np.full(6, 0.5, dtype=np.float32)
            norms[2] = math.nan if step == 30 else 0.25
            close = {"weight_norm": WEIGHTS + step, "activation_std": np.array([0.5, 0.7], dtype=np.float32)}
            arrays = {"grad_norm": norms, **(close if step % 10 == 0 else {})}
            rank.send(a_report(step, is_sampled=step % 10 == 0, sample_every=10, arrays=arrays))
        other.send(a_report(1, sample_every=100))
        assert wait_until(lambda: _step(daemon, "train") == 32 and _step(daemon, "new") == 1, 10)
        yield client


def _step(daemon: DaemonProcess, job: str) -> Any:
    answer = http.get(f"{daemon.url}api/v1/jobs/{job}", timeout=10).json()
    return answer.get("step")


def test_the_map_of_a_statistic_is_depth_by_samples(client: httpx.Client) -> None:
    answer = client.get("train/layers").json()

    assert (answer["job"], answer["stat"], answer["of"]) == ("train", "grad_norm", "layer")
    assert (answer["num_layers"], answer["num_rows"], answer["num_sampled"]) == (6, 6, 3)
    assert answer["samples"] == {
        "attempt": [1, 1, 1],
        "first_step": [10, 20, 30],
        "step": [10, 20, 30],
        "time": [1010.0, 1020.0, 1030.0],
        "num": [1, 1, 1],
    }
    assert answer["values"][0] == [0.5, 0.5, 0.5]
    assert answer["values"][2] == [0.25, 0.25, "NaN"]
    assert answer["num_bad"] == 1
    assert answer["rows"]["kind"] == ["Linear"] * 6
    assert answer["sample_every"] == 10


def test_it_fits_into_the_rows_points_and_steps_that_are_asked_for(client: httpx.Client) -> None:
    asked: dict[str, Any] = {"stat": "weight_norm", "rows": 4, "points": 1, "from": 15, "names": True}
    answer = client.get("train/layers", params=asked).json()

    assert answer["samples"]["first_step"] == [20]
    assert answer["rows"]["num"] == [1, 2, 1, 2]
    assert answer["rows"]["last_name"][1] == "blocks.2.weight"
    assert answer["rows"]["members"][1] == ["blocks.1.weight", "blocks.2.weight"]
    assert answer["values"] == [[31.0], [33.0], [34.0], [36.0]]


def test_what_was_never_seen_says_why(client: httpx.Client) -> None:
    reasons = {row["stat"]: row["reason"] for row in client.get("train/layers").json()["stats"]}
    of_new = client.get("new/layers", params={"stat": "dead"}).json()

    assert reasons["grad_norm"] is None
    assert reasons["update_ratio"] == "not understood"
    assert "tanh or sigmoid" in reasons["saturated"]
    assert "window" in reasons["dead"]
    assert {row["stat"]: row["reason"] for row in of_new["stats"]}["dead"] == "compiled"
    assert (of_new["values"], of_new["num_sampled"], of_new["sample_every"]) == ([], 0, 100)


@pytest.mark.parametrize(
    ("name", "layer", "module"),
    [
        ("blocks.0.weight", 0, "blocks.0"),
        ("blocks.4.weight", 4, None),
        ("3", 3, None),
        ("0", None, "0"),
        ("blocks.0", None, "blocks.0"),
    ],
)
def test_a_layer_is_found_by_its_name_its_module_or_its_number(
    client: httpx.Client, name: str, layer: int | None, module: str | None
) -> None:
    answer = client.get(f"train/layers/{name}").json()

    assert (answer["layer"] or {}).get("index") == layer
    assert (answer["module"] or {}).get("name") == module


def test_one_layer_has_all_its_statistics(client: httpx.Client) -> None:
    answer = client.get("train/layers/blocks.2.weight", params={"to": 25}).json()

    assert answer["layer"]["numel"] == 300
    assert answer["samples"]["step"] == [10, 20]
    assert answer["stats"]["weight_norm"] == [13.0, 23.0]
    assert answer["stats"]["update_ratio"] == [None, None]
    assert "activation_std" not in answer["stats"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("train/layers?stat=loss", 400, "choose one of grad_norm, update_ratio"),
        ("train/layers?points=0", 400, "points"),
        ("train/layers?points=2000&rows=2000", 400, "at most 250,000"),
        ("train/layers?row=3", 400, "row"),
        ("train/layers?from=x", 400, "from"),
        ("train/layers?keep=middle", 400, "middle"),
        ("other/layers", 404, "known: new, train"),
        ("train/layers/blocks.9.weight", 404, "/api/v1/jobs/train/sample"),
        ("train/layers/blocks.0.weight?points=3", 400, "points"),
        ("other/layers/0", 404, "known: new, train"),
    ],
)
def test_a_wrong_question_is_told_the_way_out(client: httpx.Client, path: str, status: int, words: str) -> None:
    answer = client.get(path)

    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert len(answer.json()["error"]) <= 500
