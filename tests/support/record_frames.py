"""Golden frames: one message of every type, as this version of the wire encodes it, kept for all later versions.

    python tests/support/record_frames.py

writes the files of message types that have none yet. A file that exists is never written again: it stands for the
agents and daemons that are already out there.

The format of a file: for each frame, its length in 4 bytes, big-endian, then its bytes.
"""

from pathlib import Path

import numpy as np

from caboose_wire import (
    VERSION,
    Ack,
    Batch,
    Bye,
    Command,
    Event,
    Group,
    Heartbeat,
    Held,
    Hello,
    HelloRequest,
    Holdings,
    Layer,
    Message,
    Phases,
    Plan,
    PlannedCheckpoint,
    PlanRequest,
    Refused,
    StepReport,
    StepReports,
    StepRun,
    Terms,
    ThinStep,
    Verdict,
    Welcome,
    encode,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"

MESSAGES: tuple[Message, ...] = (
    Hello(
        job="llama-7b",
        rank=3,
        world=8,
        host="node1",
        pid=4242,
        incarnation="0123456789abcdef",
        launch="slurm-77",
        attempt=2,
        agent_version="0.1.0",
        torch_version="2.8.0",
        started=1_760_000_000.5,
        start_step=1000,
        layers=(
            Layer(name="embed.weight", numel=1_000_000, kind="Embedding"),
            Layer(name="head.weight", numel=2**40, kind="Linear", placement="sharded", trainable=False),
        ),
        groups=(Group(name="0", optimizer="AdamW", settings={"lr": 1e-3, "fused": None, "amsgrad": False, "n": 2}),),
        wrapper="DistributedDataParallel",
        visible=("loss", "gradients"),
        blind={"activations": "full-graph compile"},
        config={"batch_size": 32, "name": "run"},
    ),
    StepReport(
        attempt=2,
        seq=17,
        step=1017,
        model_step=1017,
        time=1_760_000_017.25,
        loss=float("nan"),
        num_samples=64,
        lr=(1e-3, 0.0),
        phases=Phases(total=0.5, data=0.1, forward=0.15, backward=0.2),
        metrics={"accuracy": 0.75, "ppl": float("inf")},
        local_grad_norm=2.5,
        agent_seconds=0.001,
        num_dropped=4,
        slices={"grad_norm": (1, 2)},
        arrays={
            "grad_norm": np.array([1.5, float("nan"), -1.0], dtype=np.float32),
            "table": np.array([[1, 2, 3], [4, 5, float("inf")]], dtype=np.float32),
            "empty": np.empty((0,), dtype=np.float32),
        },
    ),
    StepReports(
        reports=(
            StepReport(
                attempt=0,
                seq=41,
                step=41,
                model_step=41,
                time=1_760_000_020.25,
                loss=0.5,
                lr=(1e-3,),
                phases=Phases(total=0.002),
                sample_every=6400,
                norm_every=64,
                phase_every=64,
            ),
            StepReport(
                attempt=0,
                seq=42,
                step=42,
                model_step=42,
                time=1_760_000_020.5,
                loss=float("inf"),
                slices={"grad_norm": (0, 1)},
                arrays={"grad_norm": np.array([1.5, float("nan")], dtype=np.float32)},
            ),
            StepReport(
                attempt=0,
                seq=43,
                step=43,
                model_step=43,
                time=1_760_000_020.75,
                arrays={
                    "grad_norm": np.array([2.5, -1.0], dtype=np.float32),
                    "empty": np.empty((0,), dtype=np.float32),
                },
            ),
        )
    ),
    StepRun(
        first=StepReport(
            attempt=0,
            seq=44,
            step=44,
            model_step=44,
            time=1_760_000_021.0,
            loss=0.5,
            lr=(1e-3, 1e-4),
            phases=Phases(total=0.002),
            agent_seconds=1e-5,
            sample_every=6400,
            norm_every=256,
            phase_every=64,
        ),
        steps=(
            ThinStep(0.0025, 0.25, (1e-3, 1e-4)),
            ThinStep(0.003, None, (5e-4,), 46, 32, 4096, Batch(index=46, epoch=1, shape=(32, 128))),
        ),
    ),
    Event(attempt=2, step=1017, time=1_760_000_017.5, kind="data_switch", fields={"to": "wiki", "epoch": 2, "x": 0.5}),
    Heartbeat(
        step=1017,
        since_step_seconds=0.75,
        num_dropped=4,
        num_failures=1,
        state="disabled",
    ),
    Bye(step=1017, error="RuntimeError: out of memory"),
    Ack(command=7, outcome="refused", detail="not allowed"),
    Command(
        number=7,
        kind="rollback",
        group="0123456789abcdef",
        boundary=1020,
        target=990,
        skip=30,
        lr_scale=0.5,
        expires=1_760_000_100.0,
        mac=bytes(range(32)),
    ),
    HelloRequest(),
    Welcome(max_reports=64),
    Refused(reason="version", detail="peer speaks version 9, this side speaks 1"),
    Holdings(
        group="0123456789abcdef0123456789abcdef",
        last_number=6,
        snapshots=(
            Held(900, 890, 1_760_000_001.0, is_ready=True, is_far=True),
            Held(1000, 990, 1_760_000_018.0, is_ready=False),
        ),
        snapshot_every=50,
        num_bytes=680_000_000,
        snapshot_seconds=0.099,
        budget_left=2,
        cool_until=1220,
        can_skip=True,
        can_checkpoint=True,
    ),
    PlanRequest(job="llm-7b", world=8),
    Terms(rollback="auto", is_signed=True, is_holding=True),
    Verdict(
        job="llama-7b",
        url="http://node0:9757/?job=llama-7b",
        health="critical",
        summary="non_finite since step 401: loss is NaN",
    ),
    Plan(
        job="llm-7b",
        checkpoints=(PlannedCheckpoint("/ckpt/step-900", 900, "healthy", "before the onset at 1002", is_best=True),),
        skip=((1000, 1030),),
        lr_scale=0.5,
        reason="two rollbacks did not help",
    ),
)


def pack(frames: list[bytes]) -> bytes:
    """Frames as one file."""
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def unpack(data: bytes) -> list[bytes]:
    """The frames of a file."""
    frames = []
    while data:
        size = int.from_bytes(data[:4], "big")
        frames.append(data[4 : 4 + size])
        data = data[4 + size :]
    return frames


def golden_file(message: Message, version: int = VERSION) -> Path:
    """Where a message type's frames are kept."""
    return GOLDEN / f"v{version}" / f"{type(message).__name__}.bin"


def main() -> None:
    """Records what is not recorded yet."""
    for message in MESSAGES:
        path = golden_file(message)
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pack(encode(message)))
        print(f"recorded {path}")


if __name__ == "__main__":
    main()
