"""The contract between agent and daemon: messages, their encoding, and default addresses."""

from caboose_wire.codec import VERSION, decode, encode
from caboose_wire.errors import WireError
from caboose_wire.messages import (
    Batch,
    Bye,
    Clipping,
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
from caboose_wire.rollback import Ack, Command, Held, Holdings, Plan, PlannedCheckpoint, PlanRequest, Terms
from caboose_wire.signing import is_signed, read_secret, sign

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
    "Held",
    "Hello",
    "HelloRequest",
    "Holdings",
    "Layer",
    "Message",
    "Mode",
    "Module",
    "Phases",
    "Plan",
    "PlanRequest",
    "PlannedCheckpoint",
    "Refused",
    "Scaler",
    "StepReport",
    "Terms",
    "WireError",
    "decode",
    "encode",
    "is_signed",
    "read_secret",
    "sign",
]
