"""Types of message fields, with their bounds."""

from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

MAX_LAYERS = 65_536
MAX_RANKS = 131_072
MAX_GROUPS = 256
MAX_SCALARS = 256
MAX_PARTS = 16
MAX_COUNT = 2**53

Name = Annotated[str, msgspec.Meta(max_length=256)]
JOB_PATTERN = r"^[A-Za-z0-9_.:@-]{1,128}$"
JobName = Annotated[str, msgspec.Meta(pattern=JOB_PATTERN)]
"""A job's name is also a label, a path and a command line argument, so its characters are restricted."""
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Nonce = Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
Time = Annotated[float, msgspec.Meta(ge=0.0, le=float(2**53))]
"""Unix time; always a number, because data is ordered and retained by it."""
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=float(2**53))]
"""A duration; always a number."""
Scalars = Annotated[dict[Name, float], msgspec.Meta(max_length=MAX_SCALARS)]
Scalar = float | int | str | bool | None
Settings = Annotated[dict[Name, Scalar], msgspec.Meta(max_length=256)]
"""Shown or weighed, never interpreted: an optimizer's settings, the user's configuration."""
Float32 = NDArray[np.float32]

Fingerprint = Annotated[int, msgspec.Meta(ge=0)]
Placement = Literal["replicated", "sharded", "unknown"]
"""How a parameter is placed across ranks; `unknown` is never summed and shown as a blind spot."""
