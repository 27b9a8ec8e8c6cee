"""Every Python block of README and docs runs, in one rank, or has a reason why not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.documented import NOT_RUN, Block, blocks, names_for

BLOCKS = list(blocks())
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one rank."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("block", [pytest.param(b, id=b.place) for b in BLOCKS if not b.reason])
def test_a_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CABOOSE_ENDPOINT", "tcp://127.0.0.1:9")
    names = names_for(block)
    try:
        exec(compile(block.code, block.place, "exec"), names)
        for name, found in list(names.items()):
            if name.startswith("test_"):
                found()
    finally:
        if "monitor" in names:
            names["monitor"].close()


def test_what_cannot_run_is_known_and_still_there() -> None:
    without = [block for block in BLOCKS if block.reason]
    assert {mark for mark in NOT_RUN for block in without if mark in block.code} == set(NOT_RUN)
    assert len(without) < len(BLOCKS) / 3
