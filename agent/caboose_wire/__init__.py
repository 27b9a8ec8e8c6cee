"""The contract between agent and daemon: messages, their encoding, and where the two meet."""

from caboose_wire.codec import VERSION, decode, encode
from caboose_wire.errors import WireError
from caboose_wire.messages import (
    Ack,
    Batch,
    Bye,
    Clipping,
    Command,
    Event,
    Group,
    Heartbeat,
    Hello,
    HelloRequest,
    Layer,
    Message,
    Mode,
    Module,
    Phases,
    Refused,
    Scaler,
    StepReport,
)

__all__ = [
    "VERSION",
    "Ack",
    "Batch",
    "Bye",
    "Clipping",
    "Command",
    "Event",
    "Group",
    "Heartbeat",
    "Hello",
    "HelloRequest",
    "Layer",
    "Message",
    "Mode",
    "Module",
    "Phases",
    "Refused",
    "Scaler",
    "StepReport",
    "WireError",
    "decode",
    "encode",
]
