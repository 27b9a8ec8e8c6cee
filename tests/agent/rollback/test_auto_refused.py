"""An `auto` that cannot be honoured is refused at attach, before training, with the reason and the way out."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import caboose
from caboose.observe import clipping
from caboose.observe.model_calls import num_watches
from caboose.rollback import enable
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]


@pytest.fixture
def auto(attach: Attach, network: torch.nn.Module, listening: Collector) -> Callable[..., caboose.Monitor]:
    def begin(model: torch.nn.Module = network, **options: Any) -> caboose.Monitor:
        optimizer = options.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=0.1)
        return attach(model, optimizer, **{"endpoint": listening.endpoint, "rollback": "auto", **options})

    return begin


@pytest.fixture(autouse=True)
def no_hook_is_left(network: torch.nn.Module) -> Any:
    yield
    assert not num_watches(network)


class Keyless:
    def state_dict(self) -> Any:
        raise RuntimeError("not yet")

    load_state_dict = state_dict


def skipping(**snapshots: Any) -> caboose.Rollback:
    return caboose.Rollback("auto", skip_step="nonfinite", snapshots=caboose.Snapshots(**snapshots))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an extra that cannot be saved": ({"extra": [3]}, r"extra\.0 is a int"),
    "an extra without its state": ({"extra": [Keyless()]}, "not yet"),
    "too little memory": ({"rollback": skipping(max_host_gb=1e-7)}, "max_host_gb"),
    "nobody to share with": ({"rollback": skipping(dedupe=True)}, "dedupe"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_whatever_is_refused_leaves_nothing_behind(
    auto: Attach, network: torch.nn.Module, tmp_path: Path, name: str
) -> None:
    options, reason = REFUSED[name]
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    threads, watching = set(threading.enumerate()), list(clipping._watching)
    with pytest.raises((ValueError, TypeError), match=reason):
        auto(optimizer=optimizer, **{"rollback": skipping(), "checkpoints": tmp_path, **options})
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not num_watches(network)
    assert clipping._watching == watching
    assert set(threading.enumerate()) == threads
    network(torch.full((1, 4), torch.nan)).sum().backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    assert not torch.isfinite(next(network.parameters())).all(), "no update is left out by what was refused"


def test_ranks_that_cannot_meet_leave_nothing_behind(
    auto: Attach, network: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_port(rank: int, world: int) -> Any:
        raise ValueError("no port on the host of rank 0")

    monkeypatch.setattr(enable, "open_group", no_port)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no port"):
        auto(optimizer=optimizer, rollback=skipping())
    assert not optimizer._optimizer_step_pre_hooks


def test_a_mode_that_there_is_not(auto: Attach) -> None:
    with pytest.raises(ValueError, match=r"rollback='always'.*'off', 'advise', 'auto'"):
        auto(rollback="always")


def test_a_daemon_on_another_machine_without_a_secret(
    auto: Attach, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CABOOSE_INSECURE", "1")
    with pytest.raises(ValueError, match=r"192\.0\.2\.7:5757 is on another machine.*CABOOSE_SECRET_FILE.*advise"):
        auto(endpoint="tcp://192.0.2.7:5757")
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    monkeypatch.setenv("CABOOSE_SECRET_FILE", str(tmp_path / "secret"))
    auto(endpoint="tcp://192.0.2.7:5757").close()


def test_several_ranks_without_a_process_group(auto: Attach) -> None:
    with pytest.raises(ValueError, match="2 ranks and no process group: call init_process_group before attach"):
        auto(rank=0, world_size=2)


def test_an_optimizer_whose_ranks_come_and_go(auto: Attach, network: torch.nn.Module) -> None:
    kind = type("OptimizerWrapper", (torch.optim.SGD,), {"__module__": "torchft.optim"})
    with pytest.raises(ValueError, match="torchft changes the members of a run"):
        auto(optimizer=kind(network.parameters(), lr=0.1))


def test_snapshots_that_do_not_fit_into_memory(auto: Attach) -> None:
    with pytest.raises(ValueError, match=r"GB.*max_host_gb"):
        auto(rollback=skipping(max_host_gb=1e-7))


def test_something_extra_that_has_no_state(auto: Attach) -> None:
    with pytest.raises(TypeError, match=r"element 0 is a list.*state_dict"):
        auto(extra=[[1, 2]])


def test_a_loader_in_extra_is_never_taken_back(auto: Attach) -> None:
    class Loader:
        dataset = (1, 2, 3)
        loaded = 0

        def __iter__(self) -> Any:
            return iter(self.dataset)

        def state_dict(self) -> dict[str, int]:
            return {"position": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.loaded += 1

    monitor = auto(extra={"loader": Loader()})
    assert monitor._brake is not None
    assert monitor._brake._ring._state._extras == []
