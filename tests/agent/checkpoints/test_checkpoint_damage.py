"""Files of a checkpoint that cannot be decoded, though their checksums are right: refused, so that the next best is."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import caboose
from caboose.checkpoints import layout, manifest
from caboose.checkpoints.checkpointer import Checkpointer
from caboose.checkpoints.errors import CheckpointRefused

NUM_FLIPS = 60


def a_run() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that is whole."""
    directory = tmp_path_factory.mktemp("saved")
    model, optimizer = a_run()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    Checkpointer(directory, model, [optimizer]).save(1, 1, raise_errors=True)
    return directory / "step-1"


def seal(path: Path) -> None:
    """Describes the files as they now are, so that nothing but decoding them can tell."""
    described = manifest.read(path)
    files = {name: manifest.described(path / name) for name in described.files}
    manifest.write(path, msgspec.structs.replace(described, files=files))


def test_a_bit_that_is_another_anywhere_in_a_ranks_own_tensors_is_refused_or_does_no_harm(
    saved: Path, tmp_path: Path
) -> None:
    draw = random.Random(0)
    whole = (saved / "rank-0.pt").read_bytes()
    reasons = set()
    for number in range(NUM_FLIPS):
        path = Path(shutil.copytree(saved, tmp_path / f"{number}" / "step-1"))
        content = bytearray(whole)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        (path / "rank-0.pt").write_bytes(content)
        seal(path)
        model, optimizer = a_run()
        try:
            caboose.load_checkpoint(path, model, optimizer)
        except CheckpointRefused as refused:
            reasons.add(refused.reason.split(":")[0])
    assert reasons == {"it cannot be read"}


def garbled(path: Path) -> None:
    (path / "rank-0.pt").write_bytes(b"not a file of torch's")


def of_another_shape(path: Path) -> None:
    (path / layout.SHARED).write_text(json.dumps({"model": {}}))


def of_a_type_to_come(path: Path) -> None:
    text = (path / layout.INDEX).read_text().replace('"float32"', '"float3"')
    (path / layout.INDEX).write_text(text)


UNREADABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "garbled": (garbled, "it cannot be read: "),
    "of another shape": (of_another_shape, "it cannot be read: KeyError"),
    "of a type to come": (of_a_type_to_come, "'float3', which this torch does not know"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_decoded_is_refused_and_the_next_best_is_used(saved: Path, tmp_path: Path, name: str) -> None:
    damage, reason = UNREADABLE[name]
    sound, damaged = (Path(shutil.copytree(saved, tmp_path / f"step-{step}")) for step in (1, 2))
    damage(damaged)
    seal(damaged)
    model, optimizer = a_run()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(CheckpointRefused, match=reason):
        caboose.load_checkpoint(damaged, model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    plan = caboose.ResumePlan(checkpoint=str(damaged), step=2, others=(str(sound),))
    loaded = caboose.load_checkpoint(plan, model, optimizer)
    assert loaded is not None
    assert loaded.path == sound
