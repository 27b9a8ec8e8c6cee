"""What a fuzzed message is made of: ordinary messages, and values that nobody expects in them.

Design
------
A message is a dictionary as msgpack carries it, not a struct of ours, so it may have the wrong types. It is also what
JSON can write, NaN and Infinity included: a failing example is kept as a text file that a person can read.

Both engines choose from the tables here: hypothesis, which makes an example smaller by choosing earlier entries, and
atheris, which learns from coverage which choices lead somewhere new. So the plain values come first.
"""

import math
from typing import Any

import msgspec
import numpy as np

from caboose_wire.codec import TYPES, VERSION
from caboose_wire.messages import HISTOGRAM_BINS, LAYER_ARRAYS, MODULE_ARRAYS

Fields = dict[str, Any]
Arrays = list[list[Any]]
"""Name, shape and value of each array; the value fills it, or is a list that is repeated."""

NAN, INF = math.nan, math.inf
NUM_RANKS, NUM_LAYERS, NUM_MODULES = 2, 3, 2
CODES = {cls.__name__: code for code, cls in TYPES.items()}

FLOATS = (2.0, 0.0, 1.0, 9.0, -1.0, 1e-3, NAN, INF, -INF, 1e-30, 1e30, 3.4e38, 1e308, -1e308, 5e-324, -0.0, 6.0e4, 1e5)
COUNTS = (1, 0, 2, 3, 7, 64, 1000, 2**24, 2**31, 2**32, 2**40, 2**53 - 1, 2**53)
TEXTS = (
    *(
        "",
        "a",
        "linear",
        "AdamW",
        "float16",
        "blocks.0.weight",
        "train",
        "\x1b[31mred\x1b[0m",
        "\0",
        "\n",
        '"\\',
        "<b>",
    ),
    *("{job}", "%s", "../../x", "é" * 100, "x" * 256, "x" * 4096, "\u202e", "nan", "-1", "1e999", "True", "\U0001f600"),
)
ODD = (None, True, False, "", "x", -1, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 1.5, NAN, [], [1], {}, {"a": 1}, [[]])
"""Mostly of the wrong type."""
SCALARS = (*FLOATS[:9], *COUNTS[:6], *TEXTS[:10], None, True, False, 2**53, -(2**53), 1e308)

PHASES = (
    *([0.1, 0.01, 0.03, 0.05, 0.01], [0.1], [0.0] * 5, [NAN] * 5, [INF] * 5, [-1.0] * 5, [1e308] * 5, [1e-30] * 5),
    *([0.1, 0.01, 0.03, 0.05, 0.01, 0.001, 0.01, 0.02], [0.0] * 8, [INF] * 8, [-1.0] * 8, [1e308] * 8),
    [0.1, 0.01, 0.03, 0.05, 0.01, NAN, 1e308, -1e308],
)
BATCHES = (
    [1],
    [5, 1, [32, 10], 0, -1.0, 1.0],
    [2**53] * 2,
    [1, 0, [0, 0], 2**53, NAN, INF],
    [0, 0, [], None, 1e308, -1e308],
)
MODES = ([], [False], [False, 2**53, 2**53], [True, 0, 3])
SCALERS = ([65536.0], [0.0, 0], [NAN, 2**53], [INF, 1], [1e-300, 5], [-1.0, 2])
CLIPPINGS = ([], [1.0, 3.0], [1.0, None], [0.0, 0.0], [NAN, NAN], [INF, -INF], [1e-300, 1e300], [-1.0, 5.0])
METRICS = ({}, {"accuracy": 0.5}, {"": NAN}, {"x" * 256: INF, "a": 1e308}, {"\x1b[0m": -1e308}, {"loss": 2.0})
LRS = ([1e-3], [], [0.0], [NAN], [INF], [-1.0], [1e-3, 1e308], [1e-300], [5e-2] * 4)
SLICES = ({}, {"grad_norm": [0, 1]}, {"grad_norm": [1, 2]}, {"grad_norm": [0, 0]}, {"grad_norm": [2**53, 2**53]})

REPORT: dict[str, tuple[Any, ...]] = {
    "loss": (*FLOATS, None),
    "lr": LRS,
    "phases": (*PHASES, None),
    "time": (1.0, 0.0, 1e9, float(2**53), 1e-300),
    "step": COUNTS,
    "seq": COUNTS,
    "model_step": COUNTS,
    "attempt": COUNTS,
    "num_samples": (*COUNTS, None),
    "num_tokens": (*COUNTS, None),
    "metrics": METRICS,
    "local_grad_norm": (*FLOATS, None),
    "agent_seconds": FLOATS,
    "num_dropped": COUNTS,
    "num_skipped": COUNTS,
    "is_sampled": (True, False),
    "sample_every": COUNTS,
    "norm_every": COUNTS,
    "phase_every": COUNTS,
    "num_scheduler_steps": (*COUNTS, None),
    "clipping": (*CLIPPINGS, None),
    "scaler": (*SCALERS, None),
    "batch": (*BATCHES, None),
    "mode": (*MODES, None),
    "host_bytes": (*COUNTS, None),
    "device_bytes": (*COUNTS, None),
    "fingerprint": (1, 0, 2**63, 2**64 - 1, None),
    "slices": SLICES,
    "part_losses": ([], [1.0, 2.0], [NAN, INF], [None, None], [1e308, -1e308, 0.0], [1.0], [None] * 16),
}

THIN_STEPS = (
    [0.01, 2.0, [1e-3]],
    [0.01],
    [0.0, NAN],
    [1e-300, 1e308, [NAN, INF]],
    [0.01, 2.0, [1e-3], 2**53, 2**53, 2**53, [5, 1, [32, 10]]],
    [4000.0, None, [], None, None, None, None],
    [float(2**53), 2.0],
    [0.01, -INF, [-1.0] * 4, 0, 0, 0, [2**53, 2**53, [0, 0], 2**53, NAN, INF]],
)
"""Steps of a run after its first."""

LAYER_LISTS = (
    [[f"blocks.{i}.weight", 100 * (i + 1), "Linear"] for i in range(NUM_LAYERS)],
    [[f"blocks.{i}.weight", 100, "Linear", "sharded"] for i in range(NUM_LAYERS)],
    [["a", 0, "", "unknown", False, 0, False], ["a", 2**53, "\x1b[1m", "sharded", True, 2**53], ["", 1]],
    [["w", 1]] * NUM_LAYERS,
    [],
    [["x" * 256, 1, "x" * 256]],
)
MODULE_LISTS = (
    [["act", "ReLU", 8], ["head", "Linear", 4]],
    [["a", "Tanh", 0], ["a", "Sigmoid", 2**53]],
    [],
    [["", ""], ["x" * 256, "LayerNorm", 1]],
)
GROUP_LISTS = (
    [["0", "AdamW", {"lr": 1e-3}]],
    [],
    [["0", "SGD", {"lr": NAN, "momentum": "x", "weight_decay": INF, "betas": None}]],
    [["a", "Adam", {"lr": -1.0, "eps": 0.0, "weight_decay": True}], ["a", "", {}]],
)
PART_LISTS = (
    [],
    [["generator", [0, 1], [0, 1]], ["critic", [1, NUM_LAYERS], [0, 1]]],
    [["a"], ["b"]],
    [["a", [0, NUM_LAYERS], [0, 4]], ["a", [0, NUM_LAYERS], [0, 4]]],
    [["", [2, 1], [5, 2]], ["\x1b[1m", [2**53, 2**53], [0, 2**53]]],
    [["x" * 256, [0, 2**53], [0, 0]]],
    [[str(i), [i, i + 1], [i, i + 1]] for i in range(16)],
)
FACT_NAMES = (
    *("batch_size", "precision", "optimizer", "scaler", "scheduler", "attention", "activations", "norms", "dropout"),
    *(
        "num_classes",
        "loss",
        "init_he_min",
        "init_he_max",
        "max_steps",
        "warmup_steps",
        "total_steps",
        "num_parameters",
    ),
    *("world", "lr", "weight_decay", "epochs", "dataset_size", "frozen_norms", "local_sgd", "trained_in_part", "x"),
)
FACT_VALUES = (*SCALARS, "LayerNorm,BatchNorm", "cosine", "bfloat16", 1000, 0.1, 10**6)

HELLO: dict[str, tuple[Any, ...]] = {
    "layers": LAYER_LISTS,
    "modules": MODULE_LISTS,
    "groups": GROUP_LISTS,
    "parts": PART_LISTS,
    "is_batching": (False, True),
    "proof": ("", "a" * 64, "\x1b[1m"),
    "world": (2, 1, 3, 64, 1024),
    "attempt": (0, *COUNTS),
    "start_step": (0, *COUNTS),
    "host": TEXTS[:20],
    "pid": COUNTS,
    "incarnation": ("incarnation-0", "incarnation-9", "x" * 64, "\x1b[31mxxxx"),
    "launch": ("run-1", "run-2", "", "\0" * 8, "x" * 256),
    "rollback": ("auto", "advise", "off"),
    "started": FLOATS,
    "wrapper": TEXTS[:20],
    "visible": (
        ["loss", "lr", "phases", "weights", "modes", "gradients", "local_gradients", "activations", "clipping"],
        [],
        ["loss"],
        ["x" * 256, "\x1b[0m", ""],
    ),
    "blind": ({}, {"activations": "compiled"}, {"": "\x1b[31m"}),
    "agent_version": TEXTS[:20],
    "torch_version": TEXTS[:20],
}

EVENT_KINDS = (
    "data_switch",
    "checkpoint",
    "validation",
    "hunt",
    "note",
    "warmup_end",
    "evaluation",
    "x" * 64,
    "\x1b[1m",
)
EVENT_NAMES = (
    *(
        "path",
        "step",
        "world",
        "num_bytes",
        "loss",
        "accuracy",
        "ours",
        "model_step",
        "text",
        "where",
        "summary",
        "rank",
    ),
    *("batch_step", "operation", "line", "samples", "batch", "dtype", "largest", "num_tensors", "x", ""),
)
EVENT_VALUES = (*SCALARS, "/checkpoints/5", "input", "output", "backward", "logBackward0", 0.5, 5)

SNAPSHOT_LISTS = (
    [],
    [[1, 1, 1.0]],
    [[1, 1, 1.0], [2, 2, 2.0], [3, 3, 3.0, False]],
    [[2**53, 2**53, float(2**53), True, True]] * 3,
    [[0, 0, 0.0]] * 64,
    [[10 * i, 10 * i, 5.0 * i] for i in range(1, 6)],
)
HOLDINGS: dict[str, tuple[Any, ...]] = {
    "group": ("group-of-these-ranks", "another-group", "x" * 64),
    "last_number": COUNTS,
    "snapshots": SNAPSHOT_LISTS,
    "snapshot_every": COUNTS,
    "num_bytes": COUNTS,
    "snapshot_seconds": FLOATS,
    "budget_left": (3, 0, 1, 2**53),
    "cool_until": COUNTS,
    "can_skip": (True, False),
    "can_checkpoint": (True, False),
    "can_hunt": (True, False),
    "can_clip": (True, False),
    "is_off_schedule": (True, False),
}
ACK: dict[str, tuple[Any, ...]] = {
    "command": COUNTS,
    "outcome": ("accepted", "done", "refused", "aborted", "failed"),
    "detail": TEXTS,
    "step": COUNTS,
    "seconds": FLOATS,
}
HEARTBEAT: dict[str, tuple[Any, ...]] = {
    "step": COUNTS,
    "since_step_seconds": FLOATS,
    "num_dropped": COUNTS,
    "num_failures": COUNTS,
    "state": ("training", "disabled", *TEXTS[:10]),
    "utilization": (*FLOATS, None),
    "phase": ("", "data", "forward", "backward", "optimizer", "other", "\x1b[1m"),
}
BYE: dict[str, tuple[Any, ...]] = {"step": COUNTS, "error": TEXTS, "signal": ("", "SIGTERM", *TEXTS[6:20])}
OTHERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "Heartbeat": HEARTBEAT,
    "Holdings": HOLDINGS,
    "Ack": ACK,
    "Bye": BYE,
    "PlanRequest": {"world": COUNTS},
    "Command": {},
    "Terms": {},
}
"""The fields of messages besides Hello, StepReport and Event."""

ARRAY_NAMES = (*sorted(LAYER_ARRAYS), *sorted(MODULE_ARRAYS), "unknown", "x" * 256)
SHAPES = (None, [NUM_LAYERS], [NUM_MODULES], [0], [1], [2, 0], [0, 2], [2, 2], [NUM_LAYERS, HISTOGRAM_BINS], [1000])
"""None: as the contract has it."""
FILLS: tuple[Any, ...] = (*FLOATS, [0.1, 0.2, 0.3], [NAN, 1.0, -1.0], [1e-30, 1e30], [-2.0, INF])

PATHS = (
    "/api/v1/jobs",
    "/api/v1/jobs/{job}",
    "/api/v1/jobs/{job}/incidents",
    "/api/v1/jobs/{job}/decisions",
    "/api/v1/jobs/{job}/ledger",
    "/api/v1/jobs/{job}/findings",
    "/api/v1/jobs/{job}/diagnosis",
    "/api/v1/jobs/{job}/events",
    "/api/v1/jobs/{job}/sample",
    "/api/v1/jobs/{job}/series",
    "/api/v1/jobs/{job}/series?points=3&from=0&to=9007199254740992",
    "/api/v1/jobs/{job}/steps?attempt=1&step=2&before=5&after=5",
    "/api/v1/jobs/{job}/layers",
    "/api/v1/jobs/{job}/layers?stat=update_ratio&points=3&rows=2&keep=smallest&names=true",
    "/api/v1/jobs/{job}/layers?stat=activation_std&from=1&to=2",
    "/api/v1/jobs/{job}/layers/blocks.0.weight",
    "/api/v1/jobs/{job}/layers/%1b%00?from=0",
    "/api/v1/daemon",
    "/api/v1/rules",
    "/api/v1/config",
    "/api/v1/columns",
    "/api/v1/jobs/{job}/nothing",
    "/readyz",
    "/healthz",
    "/",
)
POSTS: tuple[tuple[str, Any], ...] = (
    ("events", {"kind": "note", "fields": {"text": "x"}}),
    ("events", {"kind": "checkpoint", "fields": {"path": "/c/5", "step": 5}}),
    ("events", {"kind": "checkpoint", "fields": {"path": "/c/5", "step": True}}),
    ("events", {"kind": "validation", "fields": {"loss": 1e308}}),
    ("events", {"kind": "x" * 65}),
    ("events", {"kind": "hunt", "fields": {"rank": -1, "where": "input", "batch_step": 2**63 - 1}}),
    ("incidents/1/ack", {"reason": "looking", "by": "\x1b[1mme"}),
    ("incidents/1/ack", {"undo": True}),
    ("incidents/99999999999999999999/ack", {"reason": "x"}),
    ("rollback", {"by": "me"}),
    ("rollback", {"to": 10, "skip": 3, "lr_scale": 0.5, "by": "x" * 100}),
    ("rollback", {"to": -1, "skip": 2**63, "dry_run": True}),
    ("commands", {"kind": "snapshot"}),
    ("commands", {"kind": "scale_lr", "lr_scale": 0.5}),
    ("commands", {"kind": "clip", "max_norm": 1.0}),
    ("commands", {"kind": "hunt", "to": 10}),
    ("commands", {"kind": "stop", "by": "é"}),
    ("commands", {"kind": "checkpoint", "dry_run": True}),
    ("commands", []),
)


def extreme(value: float) -> Fields:
    """A report in which every number that may be anything is this one."""
    alone = dict.fromkeys(("loss", "local_grad_norm", "agent_seconds"), value)
    grouped = {"lr": [value], "phases": [value] * 5, "metrics": {"m": value}, "clipping": [value, value]}
    return {**alone, **grouped, "scaler": [value, 1], "batch": [1, 0, [], 1, value, value], "is_sampled": True}


def shape_of(name: str) -> list[int]:
    """The shape that the contract wants of an array."""
    rows = NUM_MODULES if name in MODULE_ARRAYS else NUM_LAYERS
    return [rows, HISTOGRAM_BINS] if name.endswith("_histogram") else [rows]


def frames_of(kind: str, header: Fields, arrays: Arrays = []) -> list[bytes]:  # noqa: B006 - never changed
    """The frames of a message; the header is sent as it is, whatever is in it."""
    described = {name: shape if shape is not None else shape_of(name) for name, shape, _ in arrays}
    header = {**header, "arrays": described} if arrays else header
    bodies = [_filled(described[name], value) for name, _, value in arrays]
    return [bytes((VERSION, CODES[kind])), msgspec.msgpack.encode(header), *bodies]


def frames_of_several(parts: list[tuple[Fields, Arrays]]) -> list[bytes]:
    """The frames of a message of several reports."""
    made = [frames_of("StepReport", header, arrays) for header, arrays in parts]
    header = {"reports": [msgspec.msgpack.decode(frames[1]) for frames in made]}
    bodies = [body for frames in made for body in frames[2:]]
    return [bytes((VERSION, CODES["StepReports"])), msgspec.msgpack.encode(header), *bodies]


def frames_of_run(first: Fields, steps: list[Any]) -> list[bytes]:
    """The frames of a run of thin steps."""
    return frames_of("StepRun", {"first": first, "steps": steps})


def _filled(shape: list[int], value: Any) -> bytes:
    array = np.empty(math.prod(shape), dtype="<f4")
    with np.errstate(over="ignore"):
        array[:] = np.resize(np.asarray(value, dtype=np.float64), array.size)
    return array.tobytes()
