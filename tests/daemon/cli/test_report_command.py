"""`caboose report` writes one file that opens offline and says what is known of a run, and what is not."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import caboose
from caboose_daemon.offline.html_report.figures import figures
from caboose_daemon.offline.runs.run import Run
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_wire import Batch, Event, Layer, Module, Phases
from support.scenario import JournaledCore, scenario
from support.written_logs import falling, written

Make = Callable[..., JournaledCore]


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(caboose, ["report", *arguments])


def text_of(path: Path) -> str:
    """The report without scripts and styles: what a reader reads."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r"<script type='application/json' id='data'>(.*?)</script>", path.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture
def spiking(tmp_path: Path) -> str:
    losses = falling(600, 1.0)
    losses[400:406] += np.linspace(8, 1, 6)
    losses[500] = np.nan
    return written(tmp_path, "spiking", losses, lr=1e-3, validations={99: 2.0, 199: 1.5}, hidden=64)


def test_the_file_needs_nothing_from_anywhere(tmp_path: Path, spiking: str) -> None:
    target = tmp_path / "report.html"

    done = ran(spiking, "-o", str(target))

    assert done.exit_code == 0, done.output
    whole = target.read_text()
    assert "default-src 'none'" in whole
    assert "plotly.js v" in whole[:4_000_000].lower() or "Plotly" in whole
    assert not re.search(
        r"<(?:link|img|iframe|script)[^>]+(?:src|href)=", re.sub(r"<script>.*?</script>", "", whole, flags=re.DOTALL)
    )
    assert list(tmp_path.glob(".*")) == [], "nothing is left of the writing"


def test_a_run_that_died_of_nan_has_no_loss_at_its_end(tmp_path: Path) -> None:
    losses = falling(600, 1.0)
    losses[450:] = np.nan
    target = tmp_path / "report.html"

    assert ran(written(tmp_path, "dead", losses), "-o", str(target)).exit_code == 0

    assert "<dt>final loss</dt><dd>not finite</dd><small>since step 450</small>" in text_of(target)


def test_a_log_gets_its_curves_incidents_causes_settings_and_blindness(tmp_path: Path, spiking: str) -> None:
    target = tmp_path / "report.html"
    ran(spiking, "-o", str(target))

    text, data = text_of(target), data_of(target)
    for words in (
        "loss_spike",
        "inspect the batch of step 400",
        "unknown",
        "unlikely to help",
        "hidden",
        "a log has no layer statistics",
    ):
        assert words in text, words
    assert max(v for v in data["curves"]["loss_max"] if v is not None) > 8
    assert data["bad_steps"] == [500]
    assert data["validations"] == [[99, 2.0], [199, 1.5]]


def test_a_spike_survives_however_long_the_run_was(tmp_path: Path) -> None:
    losses = falling(9000, 1.0)
    losses[7777] = 50.0
    target = tmp_path / "long.html"

    ran(written(tmp_path, "long", losses), "-o", str(target))

    data = data_of(target)
    assert len(data["steps"]) <= 1500
    assert max(data["curves"]["loss_max"]) == 50.0


def test_a_bucket_keeps_the_extremes_that_a_journal_already_holds() -> None:
    num = 6000
    flat, high, low = np.full(num, 2.0), np.full(num, 2.0), np.full(num, 2.0)
    high[4321], low[1234] = 9.0, 0.5
    curves = {"loss": flat, "loss_max": high, "loss_min": low}
    steps, ones = np.arange(num), np.ones(num, np.int64)

    drawn = figures(Run("run", "journal", "", ones, steps, curves, num_bad=0 * ones))["curves"]

    assert (max(drawn["loss_max"]), min(drawn["loss_min"]), max(drawn["loss"])) == (9.0, 0.5, 2.0)


def test_one_step_of_fifty_thousand_keeps_its_gradient_and_its_time() -> None:
    num = 50_000
    norms, seconds = np.full(num, 0.5), np.full(num, 0.1)
    norms[31_234], norms[11_111], seconds[22_222] = 50.0, 0.001, 9.0
    curves = {"loss": np.full(num, 2.0), "grad_norm": norms, "step_seconds": seconds}
    steps, ones = np.arange(num), np.ones(num, np.int64)

    drawn = figures(Run("run", "log", "", ones, steps, curves, num_bad=0 * ones))["curves"]

    assert (max(drawn["grad_norm_max"]), min(drawn["grad_norm_min"]), max(drawn["step_seconds_max"])) == (50, 0.001, 9)


def test_a_journal_s_phases_and_throughput_are_in_the_report(journaled: Make, tmp_path: Path) -> None:
    phases = Phases(total=0.4, data=0.01, forward=0.1, backward=0.2, optimizer=0.05)
    scenario(ranks=2, core=journaled(), job="llama").meanwhile(phases=phases, num_samples=16, num_tokens=16384).healthy(
        20
    )
    target = tmp_path / "llama.html"

    ran(f"{tmp_path}/journal.sqlite:llama", "-o", str(target))

    assert "throughput, tokens per second" in text_of(target)
    curves = data_of(target)["curves"]
    assert curves["tokens_per_second"][-1] == pytest.approx(2 * 16384 / 0.4, rel=0.01)
    assert (curves["backward_seconds"][-1], curves["optimizer_seconds"][-1]) == (
        pytest.approx(0.2),
        pytest.approx(0.05),
    )


def test_a_job_of_a_journal_has_layers_ranks_and_configuration(journaled: Make, tmp_path: Path) -> None:
    layers = (Layer(name="in.weight", numel=64, kind="Linear"), Layer(name="out.weight", numel=32, kind="Linear"))
    story = scenario(
        ranks=2,
        core=journaled(),
        job="llama",
        layers=layers,
        modules=(Module(name="act", kind="ReLU", num_units=8),),
        visible=("loss", "gradients", "weights", "activations"),
        blind={"clipping": "a clipper of its own"},
        config={"hidden": 64},
        norms=(0.5, 0.25),
    )
    story.healthy(20).sampled(update_ratio=[0.001, 0.002], weight_norm=[1.0, 2.0], activation_dead=[0.75]).healthy(5)
    story.sampled(activation_dead=[-1.0])  # it takes several looks to tell dead units: this one does not show them
    story.nan_loss(1, at=30).healthy(3)
    target = tmp_path / "llama.html"

    done = ran(f"{tmp_path}/journal.sqlite:llama", "-o", str(target), "--json")

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"][0]["file"] == str(target)
    text, data = text_of(target), data_of(target)
    for words in ("non_finite", "rank 1", "node1", "hidden", "AdamW", "clipping: a clipper of its own", "No rollback"):
        assert words.lower() in text.lower(), words
    assert data["layers"]["layers"]["name"] == ["in.weight", "out.weight"]
    assert data["layers"]["layers"]["update_ratio"] == pytest.approx([0.001, 0.002])
    assert data["layers"]["modules"]["dead"] == [0.75]


def test_rollback_decisions_say_why_and_what_became_of_them(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    story = scenario(ranks=2, core=core, job="llama").healthy(40)
    decision = Decision(
        job="llama",
        number=1,
        time=story.now,
        attempt=1,
        step=35,
        mode="auto",
        trigger="llama/1",
        target=20,
        boundary=38,
        state="committed",
        why=("the newest healthy snapshot",),
        outcome="all ranks are back",
    )
    core.journal.decision_changed(story.job, decision)
    entry = LedgerEntry(
        kind="snapshot", name="20", step=20, attempt=1, time=story.now, health="tainted", reason="a NaN later"
    )
    core.journal.ledger_changed(story.job, entry)
    story.healthy(1)
    target = tmp_path / "llama.html"

    ran(f"{tmp_path}/journal.sqlite:llama", "-o", str(target))

    text = text_of(target)
    for words in (
        "roll back to step 20 at step 38",
        "committed",
        "the newest healthy snapshot",
        "tainted",
        "a NaN later",
    ):
        assert words in text, words
    assert data_of(target)["rollbacks"] == [{"step": 38, "target": 20, "id": "llama/d1"}]


def test_a_cause_that_is_nearly_certain_does_not_read_as_certain(journaled: Make, tmp_path: Path) -> None:
    batch = Batch(29, 0, (8,), 4, -1.0, 1.0)
    fields = {"where": "input", "summary": "sample 3 holds NaN", "rank": 1, "batch_step": 30}
    story = scenario(ranks=2, core=journaled(), job="llama").healthy(29)
    story.meanwhile(batch=lambda rank: batch if rank else None).nan_loss(1, at=30)
    story.says(1, Event(attempt=0, step=30, time=story.now, kind="hunt", fields=fields)).nan_loss(1, at=31)
    target = tmp_path / "llama.html"

    ran(f"{tmp_path}/journal.sqlite:llama", "-o", str(target))

    assert "NaN or infinity in a batch" in text_of(target)
    assert re.search(r"(9\d|&gt;99)&nbsp;%", text_of(target))
    assert "100&nbsp;%" not in text_of(target)


def test_what_a_run_calls_itself_is_never_run_as_a_script(journaled: Make, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    story = scenario(ranks=1, core=journaled(), job="evil", config={evil: evil}, layers=(Layer(name=evil, numel=4),))
    story.gradients(0.5).healthy(10).sampled(weight_norm=[1.0]).leaves(0, error=evil)
    story.wait(3)
    target = tmp_path / "evil.html"

    ran(f"{tmp_path}/journal.sqlite:evil", "-o", str(target))

    assert "<script>alert(1)" not in target.read_text()
    assert "&lt;script&gt;alert(1)" in text_of(target)
    assert data_of(target)["layers"]["layers"]["name"] == [evil]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{log}", "-o", "{tmp}/no/such/place.html"], "No such file or directory; -o names another file"),
        (["{tmp}/gone.csv"], "gone.csv: no such file"),
        (["{log}", "-o", "{tmp}/r.html", "--png", "{tmp}/r.png"], "CABOOSE_CHROMIUM=no-such-browser: no such program"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(
    tmp_path: Path, spiking: str, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setenv("CABOOSE_CHROMIUM", "no-such-browser")
    before = set(tmp_path.iterdir())

    done = ran(*(a.format(log=spiking, tmp=tmp_path) for a in arguments))

    assert done.exit_code == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert set(tmp_path.iterdir()) == before


def test_a_journal_of_several_jobs_wants_one_named(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    for job in ("one", "two"):
        scenario(ranks=1, core=core, job=job).healthy(5)

    done = ran(f"{tmp_path}/journal.sqlite")

    assert done.exit_code == 2
    assert "name one:" in done.stderr
