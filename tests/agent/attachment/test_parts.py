"""Several models in one job: named parts with losses of their own, without code and as given to attach."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import caboose
from caboose_wire import Bye, Hello, StepReport
from support.collector import Collector
from support.processes import clean_environment
from support.training import JOBS

SECONDS = 120


def run(script: Path | str, *arguments: str, listening: Collector | None, directory: Path, **env: str) -> Any:
    """The last line that the script prints, decoded; with a collector it is run under `python -m caboose`."""
    if isinstance(script, str):
        (directory / "train.py").write_text(script)
        script = directory / "train.py"
    watched = ["-m", "caboose"] if listening is not None else []
    endpoint = {} if listening is None else {"CABOOSE_ENDPOINT": listening.endpoint}
    done = subprocess.run(
        [sys.executable, *watched, str(script), *arguments],
        cwd=directory,
        env=clean_environment(CABOOSE_OVERHEAD_BUDGET="1.0", **endpoint, **env),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "failed" not in done.stderr, done.stderr
    if listening is not None:
        listening.wait_for(Bye)
    return json.loads(done.stdout.splitlines()[-1])


def last_hello(listening: Collector) -> Hello:
    return [message for message in listening.messages if isinstance(message, Hello)][-1]


def losses_of(listening: Collector) -> dict[str, list[float | None]]:
    """By part, in the order of the reports; empty lists where there are no parts."""
    names = [part.name for part in last_hello(listening).parts]
    reports = [message for message in listening.messages if isinstance(message, StepReport)]
    return {
        name: [r.part_losses[n] if r.part_losses else r.loss if n == 0 else None for r in reports]
        for n, name in enumerate(names)
    }


def test_a_gan_is_a_job_of_two_parts_with_the_losses_that_it_prints(tmp_path: Path, listening: Collector) -> None:
    printed = run(JOBS / "gan.py", "6", listening=listening, directory=tmp_path)
    assert printed["weights"] == run(JOBS / "gan.py", "6", listening=None, directory=tmp_path)["weights"]
    assert losses_of(listening) == printed["losses"], "to the last digit, from the first step on"
    hello = last_hello(listening)
    assert [part.name for part in hello.parts] == ["discriminator", "generator"]
    for part in hello.parts:
        assert {layer.name.partition(".")[0] for layer in hello.layers[slice(*part.layers)]} == {part.name}
        assert [group.name for group in hello.groups[slice(*part.groups)]] == [f"{part.name}.0"]
    assert [r.loss for r in listening.reports] == printed["losses"]["discriminator"]
    assert hello.facts["objective"] == "adversarial"
    assert all(r.lr == (0.002, 0.001) for r in listening.reports[1:])
    assert "other_models" not in hello.blind
    assert "clipping" in hello.blind
    assert {module.name.partition(".")[0] for module in hello.modules} == {"discriminator", "generator"}


def test_an_actor_critics_and_a_temperature_are_parts_and_targets_are_not(tmp_path: Path, listening: Collector) -> None:
    printed = run(JOBS / "sac.py", "24", listening=listening, directory=tmp_path)
    assert printed["weights"] == run(JOBS / "sac.py", "24", listening=None, directory=tmp_path)["weights"]
    found = losses_of(listening)
    assert sorted(found) == ["actor", "log_alpha", "soft_q_network"]
    assert [r.step for r in listening.reports] == list(range(1, 26)), "each update of the critics is a step"
    assert found["soft_q_network"] == [*printed["losses"]["soft_q_network"].values(), None]
    assert found["actor"][-1] == printed["losses"]["actor"]["24"], "a step that is open at the end is reported"
    hello = last_hello(listening)
    for name in ("actor", "log_alpha"):
        seen = [loss for loss in found[name] if loss is not None]
        known = list(printed["losses"][name].values())
        assert len(seen) >= 10
        assert seen == known[known.index(seen[0]) :][: len(seen)]
    layers = {part.name: hello.layers[slice(*part.layers)] for part in hello.parts}
    assert {name: len(rows) for name, rows in layers.items()} == {"soft_q_network": 8, "actor": 6, "log_alpha": 1}
    assert not any("target" in layer.name for layer in hello.layers)


ENCODER_AND_DECODER = """
import json, torch
torch.manual_seed(0)
encoder, decoder = torch.nn.Linear(4, 3), torch.nn.Linear(3, 4)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (encoder, decoder)]
losses = []
for step in range(6):
    x = torch.randn(8, 4)
    loss = (decoder(encoder(x)) - x).square().mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""
BOTH_BEFORE_EITHER_STEP = """
import json, torch
torch.manual_seed(0)
class Actor(torch.nn.Linear): pass
class Critic(torch.nn.Linear): pass
actor, critic = Actor(4, 2), Critic(4, 1)
of_actor = torch.optim.SGD(actor.parameters(), lr=0.01)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
losses = {"actor": [], "critic": []}
def update(optimizer, *loss):
    optimizer.zero_grad()
    for each in loss:
        each.backward()
for step in range(6):
    state = torch.randn(8, 4)
    value = critic(state)
    chosen = actor(state).log_softmax(1)[:, 0]
    actor_loss = -(chosen * (1.0 - value.detach().squeeze(1))).mean()
    critic_loss = (value - 1.0).square().mean()
    update(of_actor, actor_loss)
    update(of_critic, critic_loss)
    of_actor.step()
    of_critic.step()
    losses["actor"].append(actor_loss.item())
    losses["critic"].append(critic_loss.item())
print(json.dumps(losses))
"""
PHASES = """
import json, torch
torch.manual_seed(0)
first, second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (first, second)]
for model, optimizer in zip((first, second), optimizers):
    for step in range(30):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
print(json.dumps([]))
"""


@pytest.mark.long
@pytest.mark.slow
def test_one_loss_that_trains_two_models_is_the_loss_of_both(tmp_path: Path, listening: Collector) -> None:
    printed = run(ENCODER_AND_DECODER, listening=listening, directory=tmp_path)
    assert losses_of(listening) == {"encoder": printed, "decoder": printed}
    assert last_hello(listening).facts["objective"] == "supervised", "no adversaries: they share what they minimise"


@pytest.mark.long
@pytest.mark.slow
def test_losses_belong_to_the_models_that_their_graphs_reach(tmp_path: Path, listening: Collector) -> None:
    """Both backward passes run before either optimizer steps, from one line of a helper."""
    printed = run(BOTH_BEFORE_EITHER_STEP, listening=listening, directory=tmp_path)
    assert losses_of(listening) == printed


@pytest.mark.long
@pytest.mark.slow
def test_a_second_phase_of_training_is_not_a_part(tmp_path: Path, listening: Collector) -> None:
    run(PHASES, listening=listening, directory=tmp_path)
    assert all(not message.parts for message in listening.hellos)
    assert listening.hellos[-1].start_step > 29


def attached(models: Any, optimizers: Any, **options: Any) -> caboose.Monitor:
    return caboose.attach(models, optimizers, job="parts", **options)


@pytest.fixture
def pair() -> tuple[dict[str, Any], dict[str, Any]]:
    models = {"maker": torch.nn.Linear(2, 4), "critic": torch.nn.Linear(4, 1)}
    return models, {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}


def test_named_models_report_named_losses(pair: Any, listening: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABOOSE_ENDPOINT", listening.endpoint)
    models, optimizers = pair
    critics = [models["critic"], torch.nn.Linear(4, 1)]
    temperature = torch.zeros(1, requires_grad=True)
    optimizers["critic"] = torch.optim.SGD([p for critic in critics for p in critic.parameters()], lr=0.2)
    with attached(
        {"maker": models["maker"], "critic": critics, "temperature": temperature},
        {**optimizers, "temperature": [torch.optim.SGD([temperature], lr=0.3)]},
    ) as monitor:
        again = attached(
            {"maker": models["maker"], "critic": critics, "temperature": temperature},
            {**optimizers, "temperature": monitor_optimizers(monitor)[-1]},
        )
        assert again is monitor
        made = models["maker"](torch.randn(8, 2))
        loss = sum(critic(made).mean() for critic in critics)
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        monitor.step({"critic": loss, "maker": 2.5})
        monitor.step(1.5)
        listening.wait_for(StepReport, 2)
    first, second = listening.reports
    assert first.part_losses == (2.5, pytest.approx(loss.item()), None)
    assert first.loss == 2.5
    assert second.part_losses == (1.5, None, None)
    assert first.lr == (0.1, 0.2, 0.3)
    hello = last_hello(listening)
    assert [(part.name, part.layers, part.groups) for part in hello.parts] == [
        ("maker", (0, 2), (0, 1)),
        ("critic", (2, 6), (1, 2)),
        ("temperature", (6, 7), (2, 3)),
    ]
    assert [layer.name for layer in hello.layers[1:4]] == ["maker.bias", "critic.0.weight", "critic.0.bias"]
    assert set(first.slices) >= {"grad_norm", "weight_norm"}
    assert (first.arrays["grad_norm"][:6] >= 0).all()


def monitor_optimizers(monitor: Any) -> list[Any]:
    return list(monitor._observer.optimizers)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda m, o: (m, {"maker": o["maker"]}), ValueError, "'critic' only in one"),
        (lambda m, o: (m, o["maker"]), TypeError, "mapping of optimizers"),
        (lambda m, o: (m["maker"], o), TypeError, "mapping of models"),
        (lambda m, o: ({}, {}), ValueError, "at least one"),
        (lambda m, o: ({**m, "critic": 3}, o), TypeError, r"models\['critic'\].*got int"),
        (lambda m, o: (m, {**o, "critic": [3]}), TypeError, r"optimizers\['critic'\].*got int"),
        (lambda m, o: (m, {**o, "critic": []}), ValueError, "at least one optimizer"),
        (lambda m, o: ({"a.b": m["maker"]}, {"a.b": o["maker"]}), ValueError, "'a.b' cannot be the name"),
        (lambda m, o: ({"train": m["maker"]}, {"train": o["maker"]}), ValueError, "attribute of every module"),
        (
            lambda m, o: ({f"m{n}": m["maker"] for n in range(17)}, {f"m{n}": o["maker"] for n in range(17)}),
            ValueError,
            "17 parts",
        ),
    ],
)
def test_a_wrong_mapping_is_refused_with_what_is_wrong(pair: Any, change: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        attached(*change(*pair))
