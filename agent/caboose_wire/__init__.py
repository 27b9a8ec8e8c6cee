"""The contract between agent and daemon: messages, their encoding, and where the two meet."""

from caboose_wire.codec import VERSION, decode, encode
from caboose_wire.errors import WireError
from caboose_wire.messages import (
    Ack,
    Bye,
    Command,
    Event,
    Group,
    Heartbeat,
    Hello,
    HelloRequest,
    Layer,
    Message,
    Phases,
    Refused,
    StepReport,
)

__all__ = [
    "VERSION",
    "Ack",
    "Bye",
    "Command",
    "Event",
    "Group",
    "Heartbeat",
    "Hello",
    "HelloRequest",
    "Layer",
    "Message",
    "Phases",
    "Refused",
    "StepReport",
    "WireError",
    "decode",
    "encode",
]
