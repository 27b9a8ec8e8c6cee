"""Settings that trainers write beside a log: a JSON file of its name, config.json, hparams.yaml, or the log's head.

Design
------
What needs settings does without where there are none, so an unreadable file is no error. YAML is read
line by line, `key: value`, which is what Lightning writes; anything nested in it is left out rather than guessed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caboose_wire.fields import Scalar

MAX_BYTES = 1 << 20
MAX_SETTINGS = 500
OF_TRAINER = ("train_batch_size", "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps")
"""What the Hugging Face Trainer writes at the head of trainer_state.json."""


def settings_beside(path: Path) -> dict[str, Scalar]:
    """The settings of the log at this path; a file of its own name wins over those of its directory."""
    folder = path if path.is_dir() else path.parent
    found: dict[str, Scalar] = {}
    found.update(_yaml(folder / "hparams.yaml"))
    for file in (folder / "config.json", folder / f"{path.stem}.config.json"):
        found.update(_flat(_json(file)))
    if path.name == "trainer_state.json":
        state = _json(path, MAX_BYTES * 64)
        found.update(_flat({key: state[key] for key in OF_TRAINER if key in state}))
        if "train_batch_size" in found:
            found["batch_size"] = found.pop("train_batch_size")
    return dict(list(found.items())[:MAX_SETTINGS])


def _json(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > limit:
            return {}
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _yaml(path: Path) -> Iterator[tuple[str, Scalar]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.stat().st_size <= MAX_BYTES else []
    except (OSError, ValueError):
        return
    for line in lines:
        key, colon, text = line.partition(": ")
        if colon and key and not key[0].isspace() and not text.startswith(("&", "*", "!", "{", "[")):
            yield key, _scalar(text.strip())


def _scalar(text: str) -> Scalar:
    if text in ("true", "True", "false", "False"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text in ("null", "~", "") else text.strip("'\"")


def _flat(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, Scalar]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{before}{key}.")
        elif inner is None or isinstance(inner, str | int | float | bool):
            yield f"{before}{key}", inner
        elif isinstance(inner, list) and len(inner) <= 8 and not any(isinstance(i, dict | list) for i in inner):
            yield f"{before}{key}", ", ".join(map(str, inner))
