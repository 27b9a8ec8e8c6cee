"""The cookbook's blocks run from top to bottom and print what the page shows."""

from pathlib import Path

import pytest

from support import cookbook

FEW = 4


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_first_blocks_print_what_the_page_shows(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    with cookbook.inside(tmp_path):
        for block in list(cookbook.blocks(cookbook.PAGE.read_text()))[:FEW]:
            printed = cookbook.run(block, names, tmp_path)
            assert cookbook.is_alike(printed, block.printed), f"{block.code}\nprints\n{printed}"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_every_block_prints_what_the_page_shows(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    found = list(cookbook.blocks(cookbook.PAGE.read_text()))
    assert len(found) > 15
    with cookbook.inside(tmp_path):
        for block in found:
            printed = cookbook.run(block, names, tmp_path)
            assert cookbook.is_alike(printed, block.printed), f"{block.code}\nprints\n{printed}"
    written = {path.name for path in tmp_path.iterdir()}
    assert {"flow.png", "flow.svg", "activations.html", "lr.png", "curves.png", "both.svg"} <= written


def test_outputs_are_alike_where_only_numbers_are_slightly_apart() -> None:
    assert cookbook.is_alike("loss 1.396 to 0.0095 in 55 steps", "loss 1.397 to 0.0096 in 56 steps")
    assert not cookbook.is_alike("loss 1.396 in 55 steps", "loss 2.9 in 55 steps")
    assert not cookbook.is_alike("pass: loss 1.4", "fail: loss 1.4")
