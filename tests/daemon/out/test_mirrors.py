"""The mirrors: event files that TensorBoard itself reads, offline runs of Weights & Biases, and nothing that waits."""

import json
import os
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from caboose_daemon.cli import caboose
from caboose_daemon.config import Config, ExportConfig
from caboose_daemon.jobs.state import State
from caboose_daemon.offline.runs.from_log import from_log
from caboose_daemon.out.export.exports import Exports, make_exports
from caboose_daemon.out.export.items import MAX_LAYERS, MAX_PENDING, MirroredSample, layer_values
from caboose_daemon.out.export.runs import FILE, RunBook, folder_name
from caboose_daemon.steps.masked import LayerValues
from caboose_wire import Clipping, Event, Module, Phases, Scaler
from support.guarded import guarded
from support.mirrored import MirroredCore, Quiet
from support.processes import clean_environment, running_daemon, wait_until
from support.ranks import LAYERS, a_report, simulated_ranks
from support.scenario import NAN, Both, Scenario

PATIENCE = 30.0
SHARES = [0.0] * 10 + [0.5, 0.25] + [0.0] * 20 + [0.25, 0.5]
"""A histogram row: half in [2^-14, 2^-13), a quarter in the next, a quarter zeros, half negative."""


class Told(Scenario):
    """A story that is mirrored while it is played."""

    exports: Exports

    def end(self) -> None:
        """Writes everything out."""
        self.exports.close(PATIENCE)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Callable[..., Told]]:
    """Begins stories that are mirrored to TensorBoard."""
    made: list[Exports] = []

    def begin(*, ranks: int = 2, export: ExportConfig | None = None, **settings: Any) -> Told:
        state = State(rule_configs={}, started=0.0)
        config = Config(export=export or ExportConfig(tensorboard_dir=str(tmp_path / "logs")))
        exports = make_exports(config, state, tmp_path)
        exports.start()
        made.append(exports)
        story = Told(ranks, core=MirroredCore(exports), **settings)
        story.exports = exports
        return story

    yield begin
    for exports in made:
        exports.close(PATIENCE)


def read_run(directory: Path) -> Any:
    """A run as the real TensorBoard loads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorBoard's own
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        loaded = EventAccumulator(str(directory), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
        loaded.Reload()
    return loaded


def curve(run: Any, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in run.Scalars(name)]


# TensorBoard


def test_tensorboard_reads_the_curves_back(told: Callable[..., Told], tmp_path: Path) -> None:
    story = told(facts={"optimizer": "AdamW"})
    story.meanwhile(clipping=Clipping(0.25), scaler=Scaler(1024.0), metrics={"accuracy": 0.5})
    story.losses(4.0, 3.0, NAN, 2.0)
    story.says(0, Event(attempt=0, step=4, time=1.0, kind="validation", fields={"loss": 2.5, "split": "a"}))
    story.says(0, Event(attempt=0, step=4, time=1.0, kind="checkpoint"))
    story.losses(1.5)
    story.end()

    run = read_run(tmp_path / "logs" / "train" / "run-1")
    assert [step for step, _ in curve(run, "loss/mean")] == [1, 2, 3, 4, 5]
    values = [value for _, value in curve(run, "loss/mean")]
    assert values[:2] == [4.0, 3.0]
    assert np.isnan(values[2]), "NaN is a value"
    assert [step for step, _ in curve(run, "loss/min")] == [1, 2, 4, 5], "nothing is no point"
    norm = story.job.recent[0].grad_norm
    assert norm is not None
    assert curve(run, "learning_rate/0")[0][1] == pytest.approx(1e-3)
    assert curve(run, "gradient/norm")[0][1] == pytest.approx(norm)
    assert curve(run, "gradient/clip_ratio")[0][1] == pytest.approx(0.25 / norm, rel=1e-4)
    assert curve(run, "gradient/loss_scale")[0] == (1, 1024.0)
    assert curve(run, "metrics/accuracy")[0] == (1, 0.5)
    assert curve(run, "validation/loss") == [(4, 2.5)]
    assert curve(run, "speed/step_seconds")[0][1] == pytest.approx(0.1)
    assert curve(run, "ranks/reporting")[0] == (1, 2.0)
    assert {"gradient/norm", "speed/data_seconds"} <= set(run.Tags()["scalars"])


def test_throughput_phases_noise_and_agreement_are_mirrored_too(told: Callable[..., Told], tmp_path: Path) -> None:
    story = told()
    phases = Phases(total=0.5, data=0.1, forward=0.125, backward=0.25, optimizer=0.0625)
    story.meanwhile(phases=phases, num_samples=8, num_tokens=4096, local_grad_norm=0.6, fingerprint=7)
    story.healthy(30).sampled(6)
    story.end()

    run = read_run(tmp_path / "logs" / "train" / "run-1")
    latest = {name: curve(run, name)[-1][1] for name in run.Tags()["scalars"]}
    wanted = {"forward_seconds": 0.125, "backward_seconds": 0.25, "optimizer_seconds": 0.0625}
    wanted |= {"samples_per_second": 32.0, "tokens_per_second": 16384.0}
    assert {name: latest[f"speed/{name}"] for name in wanted} == wanted
    assert (latest["ranks/replicas_compared"], latest["ranks/replicas_differing"]) == (2.0, 0.0)
    assert latest["gradient/noise_ratio"] == pytest.approx(story.job.meters.noise.ratio, rel=1e-5)


def test_tensorboard_reads_histograms_and_layers_of_a_sample(told: Callable[..., Told], tmp_path: Path) -> None:
    story = told(modules=(Module("relu", "ReLU", 8),))
    story.healthy(2).sampled(
        weight_norm=[1.0, 2.0, 3.0, 4.0],
        grad_histogram=[SHARES] * 4,
        weight_histogram=[SHARES, SHARES, [-1.0] * 34, SHARES],
        activation_histogram=[SHARES],
        activation_order=[0],
    )
    story.end()

    run = read_run(tmp_path / "logs" / "train" / "run-1")
    assert curve(run, "layers/weight_norm_median") == [(3, 2.5)]
    assert curve(run, "layers/gradient_norm_max")[0][1] == pytest.approx(0.4)
    names = run.Tags()["histograms"]
    assert sorted(names) == sorted(
        [
            *(f"gradient_log2/{layer.name}" for layer in LAYERS),
            *(f"weight_log2/{layer.name}" for place, layer in enumerate(LAYERS) if place != 2),
            "activation_log2/relu",
        ]
    )
    (event,) = run.Histograms("gradient_log2/blocks.1.weight")
    value = event.histogram_value
    counts = dict(zip(value.bucket_limit, value.bucket, strict=True))
    assert event.step == 3
    assert (value.num, counts[-13.0], counts[-12.0], counts[-24.0]) == (200.0, 100.0, 50.0, 50.0)


def test_each_layers_norm_is_a_scalar_and_a_deep_model_has_only_some(told: Callable[..., Told], tmp_path: Path) -> None:
    story = told()
    story.healthy(2).sampled()
    story.end()
    run = read_run(tmp_path / "logs" / "train" / "run-1")
    names = [name for name in run.Tags()["scalars"] if name.startswith("grad_norm/")]
    assert sorted(names) == sorted(f"grad_norm/{layer.name}" for layer in LAYERS)
    assert curve(run, "grad_norm/blocks.3.weight")[0][1] == pytest.approx(0.4)

    many = tuple(f"blocks.{i}.weight" for i in range(1000))
    norms = LayerValues.from_wire(np.linspace(1.0, 2.0, 1000))
    values = layer_values(MirroredSample(norms, None, None, many))
    drawn = [name for name in values if name.startswith("grad_norm/")]
    assert len(drawn) == MAX_LAYERS
    assert drawn[0] == "grad_norm/blocks.0.weight"
    assert drawn[-1] == "grad_norm/blocks.999.weight"


def test_a_mirror_is_read_back_by_replay_report_and_compare(told: Callable[..., Told], tmp_path: Path) -> None:
    story = told()
    story.healthy(40).sampled()
    story.says(0, Event(attempt=0, step=41, time=1.0, kind="validation", fields={"loss": 2.5}))
    story.healthy(3)
    story.end()
    path = tmp_path / "logs" / "train" / "run-1"

    run = from_log(path)

    assert run.last_step == 44
    assert {"loss", "grad_norm", "lr", "step_seconds"} <= set(run.curves)
    assert run.curve("loss")[1].tolist() == pytest.approx([row.loss for row in story.job.recent], rel=1e-5)
    assert [step for step, _, _ in run.validations] == [41]
    assert list(run.layer_norms) == [layer.name for layer in LAYERS]
    for command in (["replay", str(path)], ["compare", str(path), str(path)]):
        done = CliRunner().invoke(caboose, command)
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(caboose, ["report", str(path), "-o", str(tmp_path / "report.html")])
    assert done.exit_code == 0, done.output


def test_incidents_are_texts_that_tensorboard_shows(told: Callable[..., Told], tmp_path: Path) -> None:
    story = told()
    story.nan_loss(1, at=3).healthy(20)
    story.end()

    run = read_run(tmp_path / "logs" / "train" / "run-1")
    texts = {name: run.Tensors(name) for name in run.Tags()["tensors"]}
    (shown,) = [events for name, events in texts.items() if "non_finite" in name]
    said = [event.tensor_proto.string_val[0].decode() for event in shown]
    assert "**warning non_finite**" in said[0]
    assert "closed at step" in said[-1]
    assert max(value for _, value in curve(run, "incidents/open")) == 1.0


def test_every_so_many_steps_but_never_without_the_odd_ones(told: Callable[..., Told], tmp_path: Path) -> None:
    export = ExportConfig(tensorboard_dir=str(tmp_path / "logs"), every_steps=10)
    story = told(export=export)
    story.healthy(12).sampled(1).nan_loss(0, at=17).healthy(5)
    story.end()

    run = read_run(tmp_path / "logs" / "train" / "run-1")
    assert [step for step, _ in curve(run, "loss/mean")] == [10, 13, 17, 20]


def test_histograms_come_once_in_a_while_or_not_at_all(told: Callable[..., Told], tmp_path: Path) -> None:
    def steps(num_sampled: int, **settings: Any) -> list[int]:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        story = told(export=ExportConfig(tensorboard_dir=str(directory), **settings), step_seconds=10.0)
        story.sampled(num_sampled, grad_histogram=[SHARES] * 4)
        story.end()
        run = read_run(directory / "train" / "run-1")
        names = run.Tags()["histograms"]
        return [event.step for event in run.Histograms(names[0])] if names else []

    assert steps(13, histogram_seconds=60.0) == [1, 7, 13]
    assert steps(MAX_PENDING, histogram_seconds=0.0) == list(range(1, MAX_PENDING + 1)), "as many as may wait at once"
    assert steps(13, histograms=False) == []


def test_a_validation_waits_for_its_step(told: Callable[..., Told], tmp_path: Path) -> None:
    story = told()
    story.says(0, Event(attempt=0, step=2, time=1.0, kind="validation", fields={"loss": 2.5}))
    story.healthy(1).healthy(2)
    story.says(0, Event(attempt=0, step=3, time=1.0, kind="validation", fields={"loss": 2.25}))
    story.end()

    run = read_run(tmp_path / "logs" / "train" / "run-1")
    assert curve(run, "validation/loss") == [(2, 2.5), (3, 2.25)]
    assert not (tmp_path / "logs" / "train" / "run-2").exists()


# Runs


def resumed(story: Told, first: int, steps: int, launch: str) -> Told:
    """The same job, launched again from a checkpoint."""
    story.leaves(*range(story.ranks))
    nonce = f"incarnation-of-{launch}"
    again = Told(story.ranks, core=story.core, launch=launch, start_step=first - 1, incarnation=nonce)
    again.now, again.step = story.now + 60.0, first - 1
    again.exports = story.exports
    again.healthy(steps)
    return again


def test_steps_that_go_back_begin_a_new_run_and_those_that_go_on_do_not(
    told: Callable[..., Told], tmp_path: Path
) -> None:
    story = told()
    story.healthy(10)
    story = resumed(story, 11, 5, "run-2")
    story = resumed(story, 13, 5, "run-3")
    story.end()

    logs = tmp_path / "logs" / "train"
    assert [step for step, _ in curve(read_run(logs / "run-1"), "loss/mean")] == list(range(1, 16))
    assert [step for step, _ in curve(read_run(logs / "run-2"), "loss/mean")] == list(range(13, 18))


def test_a_rollback_begins_a_new_run_though_steps_go_on_and_the_text_says_why(tmp_path: Path) -> None:
    state = State(rule_configs={}, started=0.0)
    exports = make_exports(Config(export=ExportConfig(tensorboard_dir=str(tmp_path / "logs"))), state, tmp_path)
    exports.start()
    story = guarded()
    story.core.join(Both(story.core.sink, Quiet(exports)))
    story.joins(0, 1).tell_holdings()
    story.healthy(100).losses(*[9.0] * 30).healthy(40)
    exports.close(PATIENCE)

    (decision,) = story.committed
    boundary = decision.boundary
    assert boundary is not None
    runs = [read_run(tmp_path / "logs" / "train" / name) for name in ("run-1", "run-2")]
    before, after = (curve(run, "loss/mean") for run in runs)
    assert [step for step, _ in before] == list(range(1, boundary + 1)), "with what was undone, as it was"
    assert [step for step, _ in after] == list(range(boundary + 1, story.step + 1))
    assert not (tmp_path / "logs" / "train" / "run-3").exists()
    texts = [
        event.tensor_proto.string_val[0].decode()
        for run in runs
        for name in run.Tags()["tensors"]
        if name.startswith("rollbacks/")
        for event in run.Tensors(name)
    ]
    assert texts[0].startswith(f"roll back to step {decision.target} at step {boundary}: committed")
    assert "loss continues from there" in texts[-1]


def test_the_run_after_a_rollback_is_found_again_by_a_restarted_daemon(tmp_path: Path) -> None:
    book = RunBook(tmp_path, "train")
    assert [book.at(step).number for step in (1, 2, 3)] == [1, 1, 1]
    assert [book.at(step, rewound_at=3).number for step in (4, 5)] == [2, 2]
    book.save()

    again = RunBook(tmp_path, "train")
    assert [again.at(step, rewound_at=3).number for step in (6, 7)] == [2, 2]
    assert again.at(8, rewound_at=7).number == 3, "the next one"
    assert again.at(9).number == 3, "a restart that goes on"


def test_a_restarted_daemon_goes_on_in_the_run_it_was_in(told: Callable[..., Told], tmp_path: Path) -> None:
    story = told()
    story.healthy(5)
    story.end()
    again = told()
    again.step = 5
    again.healthy(3)
    again.end()
    anew = told()
    anew.healthy(2)
    anew.end()

    logs = tmp_path / "logs" / "train"
    assert [step for step, _ in curve(read_run(logs / "run-1"), "loss/mean")] == list(range(1, 9))
    assert [step for step, _ in curve(read_run(logs / "run-2"), "loss/mean")] == [1, 2]


def test_a_book_that_is_spoiled_or_somebody_elses_begins_a_new_run(tmp_path: Path) -> None:
    book = RunBook(tmp_path, "train")
    assert book.at(1).number == 1
    (book.directory / "run-1").mkdir(parents=True)
    book.save()
    assert RunBook(tmp_path, "train").at(2).number == 1

    for content in ("", "[]", "{}", json.dumps({"job": "other", "number": 1, "last_step": 1, "nonce": "x"})):
        (book.directory / FILE).write_text(content)
        assert RunBook(tmp_path, "train").at(2).number == 2


@pytest.mark.parametrize(
    ("job", "folder"),
    [("train", "train"), ("..", "__"), (".hidden", "_hidden"), ("a:b@c.d-e", "a:b@c.d-e"), ("a/b", "a_b")],
)
def test_no_job_name_leads_out_of_the_directory(job: str, folder: str) -> None:
    assert folder_name(job) == folder


# In a daemon


def test_a_running_daemon_writes_what_its_ranks_report(tmp_path: Path) -> None:
    (tmp_path / "caboose.toml").write_text("[export]\ntensorboard_dir = 'logs'\n")
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 2) as ranks:
        for step in range(1, 6):
            for rank in ranks:
                rank.send(a_report(step))
        sent = 'caboose_exports_total{target="tensorboard"} 5.0'
        assert wait_until(lambda: sent in daemon.text("/metrics"), PATIENCE), daemon.log.read_text()
        assert daemon.stop() == 0

    run = read_run(tmp_path / "logs" / "train" / "run-1")
    assert curve(run, "loss/mean") == [(step, 2.0) for step in range(1, 6)]


@pytest.mark.parametrize(
    ("table", "module", "line"),
    [
        ("tensorboard_dir = 'x'", "tensorboardX", "[export] tensorboard_dir is set, but tensorboardX is not installed"),
        ("wandb_project = 'x'", "wandb", "[export] wandb_project is set, but wandb is not installed"),
    ],
)
def test_a_library_that_is_missing_is_one_line_that_names_the_extra(
    table: str, module: str, line: str, refused_start: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "caboose.toml").write_text(f"[export]\n{table}\n")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    path = os.pathsep.join(filter(None, [str(hidden), os.environ.get("PYTHONPATH", "")]))

    assert refused_start(PYTHONPATH=path) == f"{line}: pip install 'caboose[mirror]'"


def test_a_mirror_does_not_pull_torch_in(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from caboose_daemon.config import Config, ExportConfig\n"
        "from caboose_daemon.out.export.exports import make_exports\n"
        "from caboose_daemon.jobs.state import State\n"
        "config = Config(export=ExportConfig(tensorboard_dir='x', wandb_project='y'))\n"
        "make_exports(config, State(rule_configs={}, started=0.0), Path('.'))\n"
        "assert 'tensorboardX' in sys.modules and 'torch' not in sys.modules\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=tmp_path, env=clean_environment()
    )

    assert ended.returncode == 0, ended.stderr


# Weights & Biases


def records(content: bytes) -> Iterator[bytes]:
    """The records of W&B's file: LevelDB's log format, after a header of seven bytes."""
    at, parts = 7, []
    while at + 7 <= len(content):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def read_offline(directory: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows and the summary of an offline run, by W&B's own messages."""
    from wandb.proto import wandb_internal_pb2

    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for content in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        rows += [{_key(item): json.loads(item.value_json) for item in record.history.item}]
        summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
    return [row for row in rows if row], summary


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


@pytest.mark.slow
@pytest.mark.long
def test_an_offline_run_of_weights_and_biases_holds_the_same(tmp_path: Path) -> None:
    """In a process of its own, as W&B runs in one: it starts a service and leaves hooks behind."""
    table = "[export]\nwandb_project = 'tests'\nwandb_dir = 'mirror'\n[daemon]\n"
    (tmp_path / "caboose.toml").write_text(table)
    env = {"WANDB_MODE": "online", "HOME": str(tmp_path), "WANDB_ERROR_REPORTING": "false"}
    modules = {"modules": (Module("relu", "ReLU", 8),)}
    with running_daemon(tmp_path, env=env) as daemon, simulated_ranks(daemon.endpoint, 1, hello=modules) as (rank,):
        for step in range(1, 6):
            arrays = {"grad_norm": np.full(4, 0.5, dtype=np.float32)}
            if step == 3:
                arrays["grad_histogram"] = np.array([SHARES] * 4, dtype=np.float32)
            rank.send(a_report(step, loss=NAN if step == 4 else 2.0, arrays=arrays, is_sampled=step == 3))
        rank.send(Event(attempt=0, step=5, time=1.0, kind="validation", fields={"loss": 2.5}))
        sent = 'caboose_exports_total{target="wandb"} '
        wait_until(lambda: float(daemon.text("/metrics").partition(sent)[2].partition("\n")[0] or 0) >= 7, 90)
        daemon.process.terminate()
        daemon.process.wait(60)

    rows, summary = read_offline(tmp_path / "mirror" / "train" / "run-1")
    by_step = {row["_step"]: row for row in rows}
    assert sorted(by_step) == [1, 2, 3, 4, 5]
    assert by_step[1]["loss/mean"] == 2.0
    assert by_step[5]["validation/loss"] == 2.5
    assert by_step[3]["gradient_log2/blocks.1.weight._type"] == "histogram"
    assert sum(by_step[3]["gradient_log2/blocks.1.weight.values"]) == 200.0
    assert "non_finite" in json.dumps(summary)
