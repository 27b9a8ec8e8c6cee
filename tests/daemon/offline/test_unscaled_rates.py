"""A comparison of runs with different batches at one learning rate says that the rate was not scaled."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from caboose_daemon.cli import caboose
from support.written_logs import written


def cautions(folder: Path, batches: tuple[int, int], rates: tuple[float, float]) -> list[str]:
    paths = []
    for number, (batch, rate) in enumerate(zip(batches, rates, strict=True)):
        losses = 0.5 + 2.0 * 0.99 ** np.arange(300) + 0.01 * np.random.default_rng(number).standard_normal(300)
        path = written(folder, f"run{number}", losses, lr=rate)
        Path(path).with_suffix(".config.json").write_text(json.dumps({"batch_size": batch, "optimizer": "SGD"}))
        paths.append(str(path))
    done = CliRunner().invoke(caboose, ["compare", *paths, "--json"])
    assert done.exit_code == 0, done.output
    return [one["text"] for one in json.loads(done.stdout)["statements"] if one["kind"] == "caution"]


def test_a_batch_eight_times_as_large_at_the_same_rate_is_named(tmp_path: Path) -> None:
    (found,) = [text for text in cautions(tmp_path, (32, 256), (0.1, 0.1)) if "learning rate" in text]
    assert found.startswith("B (batch 256) has the learning rate of A (batch 32): scale it by 8 (Adam: 2.8)")


@pytest.mark.parametrize(("batches", "rates"), [((32, 256), (0.1, 0.8)), ((32, 48), (0.1, 0.1))])
def test_a_scaled_rate_and_a_similar_batch_are_not(
    tmp_path: Path, batches: tuple[int, int], rates: tuple[float, float]
) -> None:
    assert not [text for text in cautions(tmp_path, batches, rates) if "scale it" in text]
