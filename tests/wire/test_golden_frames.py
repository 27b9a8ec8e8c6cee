"""Frames recorded from version 1 are still understood, whatever the code looks like by now."""

import msgspec
import numpy as np
import pytest

from caboose_wire import Message, StepReport, StepReports, decode
from caboose_wire.codec import TYPES
from support.record_frames import MESSAGES, golden_file, unpack

by_type = pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)


def plain(message: Message) -> object:
    """A message as builtin values that compare equal, NaN and arrays included."""
    if isinstance(message, StepReports):
        return [plain(report) for report in message.reports]
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    if isinstance(message, StepReport):
        fields["arrays"] = {name: (a.shape, str(a.dtype), a.tobytes()) for name, a in message.arrays.items()}
    return repr(msgspec.to_builtins({k: v for k, v in fields.items() if k != "arrays"})), fields.get("arrays")


def test_every_message_type_is_recorded() -> None:
    assert {type(message) for message in MESSAGES} == set(TYPES.values())


@by_type
def test_a_recorded_frame_decodes_to_the_message_it_was_made_from(message: Message) -> None:
    assert plain(decode(unpack(golden_file(message, version=1).read_bytes()))) == plain(message)


def test_recorded_arrays_come_back_as_little_endian_float32() -> None:
    (report,) = (m for m in MESSAGES if isinstance(m, StepReport))

    decoded = decode(unpack(golden_file(report, version=1).read_bytes()))

    assert isinstance(decoded, StepReport)
    assert list(decoded.arrays) == ["grad_norm", "table", "empty"]
    assert decoded.arrays["table"].dtype == np.dtype("<f4")
    assert decoded.arrays["table"].tolist() == [[1, 2, 3], [4, 5, float("inf")]]
    assert np.isnan(decoded.arrays["grad_norm"][1])
