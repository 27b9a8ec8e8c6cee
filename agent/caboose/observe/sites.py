"""Places in the user's code: the frame, outside of torch and other libraries, that a call came from."""

import sysconfig
from pathlib import Path
from types import CodeType, FrameType

Site = tuple[tuple[CodeType, int], ...]
"""The innermost calls in the user's code: code and instruction."""
MAX_FRAMES = 24
"""Frames that are looked at, the innermost first."""
DEPTH = 3
"""Calls that tell one place from another: a helper that steps several optimizers is called from different lines.

The frames of libraries between them do not count: a script's own wrapper around `backward` is called by torch.
"""
LIBRARIES = tuple({*(sysconfig.get_paths()[name] for name in ("purelib", "platlib")), str(Path(__file__).parents[1])})


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not in an installed library or in this package; the outermost if there is none."""
    last = frame
    for _ in range(MAX_FRAMES):
        if frame is None:
            return last
        if not frame.f_code.co_filename.startswith(LIBRARIES):
            return frame
        last, frame = frame, frame.f_back
    return last


def site_of(frame: FrameType | None) -> Site:
    """The place in the user's code that leads to this frame."""
    found: list[tuple[CodeType, int]] = []
    at = user_frame(frame)
    for _ in range(MAX_FRAMES):
        if at is None or len(found) == DEPTH:
            break
        if not found or not at.f_code.co_filename.startswith(LIBRARIES):
            found.append((at.f_code, at.f_lasti))
        at = at.f_back
    return tuple(found)
