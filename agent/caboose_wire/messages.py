"""Every message that crosses the wire, as typed structs.

Design
------
Up (agent to daemon): Hello, StepReport, StepReports, StepRun, Event, Heartbeat, Bye, Ack, Holdings, PlanRequest. Down:
Command, HelloRequest, Welcome, Refused, Terms, Plan, Verdict.

Steps of a few milliseconds travel several to a message: whole reports (StepReports), or a run of thin steps (StepRun)
as one report and a short row for each step after it, of which `runs` makes whole reports again. So what a step means
does not depend on how it travelled. A daemon announces that it takes such messages (Welcome) to agents whose Hello has
`is_batching`; an earlier version of either side sends and gets single reports only.

A *layer* is one parameter tensor; its name is sent once, in Hello, and reports refer to it by position. Per-layer
numbers are float32 arrays next to the header (see `codec`), under a name from `LAYER_ARRAYS`. A report may cover only
some of the layers (ranks of a replicated model divide the work), given by `slices` as (start, stride) in the layer
table.

Step identity: `attempt` counts how often this process group was restarted or rolled back, `seq` counts the
reports of one process (a gap is a drop), `step` counts optimizer steps and never goes back within an attempt,
`model_step` is the age of the weights and does go back on a rollback. A snapshot is identified by the `step` after
which it was taken: that never repeats within a process, since a rollback moves the weights back and the loop continues.
"""

from typing import Annotated

import msgspec

from caboose_wire.fields import (
    MAX_GROUPS,
    MAX_LAYERS,
    MAX_PARTS,
    MAX_RANKS,
    Count,
    Fingerprint,
    Float32,
    JobName,
    Name,
    Nonce,
    Placement,
    Rank,
    Scalars,
    Seconds,
    Settings,
    Text,
    Time,
)
from caboose_wire.rollback import Ack, Command, Holdings, Plan, PlanRequest, RollbackMode, Terms

LAYER_ARRAYS = frozenset(
    {
        "grad_norm",
        "local_grad_norm",
        "grad_zero_fraction",
        "grad_histogram",
        "weight_norm",
        "weight_histogram",
        "update_ratio",
        "layer_fingerprint",
    }
)
"""Arrays with one row per layer, or per layer of the report's slice; -1 for unknown.

grad_norm           L2 norm of the gradient before clipping
local_grad_norm     L2 norm of this rank's gradient, before any reduction              (sampled steps, from here on)
grad_zero_fraction  share of exact zeros in the gradient
grad_histogram      magnitudes of the gradient by power of two: 32 bins, zeros, negative share
weight_norm         L2 norm of the parameter
weight_histogram    as grad_histogram, of the parameter
update_ratio        L2 norm of the optimizer's update divided by that of the parameter
layer_fingerprint   24 bits of the parameter's fingerprint, to find the layer when the whole one differs
"""

MODULE_ARRAYS = frozenset(
    {
        "activation_std",
        "activation_max",
        "activation_zero_fraction",
        "activation_saturated",
        "activation_dead",
        "activation_histogram",
        "activation_order",
        "router_entropy",
        "router_share",
        "router_busiest",
        "router_dead",
        "attention_logit",
        "attention_head",
    }
)
"""Arrays with one row per module of Hello, on sampled steps.

activation_order      position in the order of execution, from 0; -1: not called, its other rows are invalid
activation_std, _zero_fraction, _saturated (share of saturated units; -1: not applicable), _histogram
activation_max        largest magnitude over all elements: not finite if any element is
activation_dead       share of units that are zero for all data over the window; -1: not applicable, or window not full
router_entropy        entropy of the experts' shares of tokens, over that of equal shares: 0 to 1; -1: not a router
router_share, _busiest (share and number of the expert with the most tokens)
router_dead           share of experts without a token over the window; -1: not a router, or window not full
attention_logit       largest logit that the sampled queries and keys of one head could give; -1: not an attention
attention_head        the number of that head
"""

LOWEST_RANK_ARRAYS = frozenset({"activation_histogram"})
"""Arrays of which the daemon reads only that of the lowest rank that has them; relays may leave out the others."""

UNREAD_IF_FINITE_ARRAYS = frozenset({"local_grad_norm"})
"""Arrays in which the daemon looks for numbers that are not finite, and reads nothing else."""

MAX_REPORTS = 64
"""Of one message."""
MAX_RUN = 256
"""Steps of one StepRun after its first."""

HISTOGRAM_BINS = 34
HISTOGRAM_LOWEST = -24
"""Exponent of the first of the 32 bins of a histogram; the shares of zeros and of negative elements follow."""


class Layer(msgspec.Struct, frozen=True, array_like=True):
    """One parameter tensor of the model."""

    name: Name
    numel: Count
    """Elements of the whole parameter, also if this rank has only a shard."""
    kind: Name = ""
    """Class of the module that owns it."""
    placement: Placement = "replicated"
    trainable: bool = True
    replicas: Count = 1
    """Number of ranks that have each piece; squares summed over all ranks are divided by it."""
    held: bool = True
    """Whether an optimizer updates it."""
    group: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] = -1
    """Its parameter group, as its place in the Hello's groups; -1 if it has none or the agent is older."""


class Module(msgspec.Struct, frozen=True, array_like=True):
    """A place where activations are measured: a leaf module, or a functional call inside one."""

    name: Name
    kind: Name
    num_units: Count = 0
    """Channels or features; 0 if not applicable."""


class Group(msgspec.Struct, frozen=True, array_like=True):
    """One parameter group of an optimizer."""

    name: Name
    optimizer: Name
    settings: Settings = {}
    num_parameters: Count = 0
    """Elements of this rank's tensors; 0 if unknown."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One of several models that a job trains, each with optimizers and a loss of its own.

    The layers and groups of a part are neighbours in their tables; a range is its first row and the row after its last.
    """

    name: Name
    layers: tuple[Count, Count] = (0, 0)
    groups: tuple[Count, Count] = (0, 0)


class Phases(msgspec.Struct, frozen=True, array_like=True):
    """Wall time of a step by phase, in seconds; NaN for an unknown phase."""

    total: float
    data: float = float("nan")
    forward: float = float("nan")
    backward: float = float("nan")
    optimizer: float = float("nan")
    loss: float = float("nan")
    """Between forward and backward."""
    forward_wait: float = float("nan")
    """Of the forward, waiting for other ranks; what is not waiting is the rank's own time."""
    backward_wait: float = float("nan")
    """Of the backward."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's first message: identity, model, settings, available statistics."""

    job: JobName
    rank: Rank
    world: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    host: Name
    pid: Count
    incarnation: Nonce
    """New for every process; distinguishes a restarted rank from a reconnected one."""
    launch: Name = ""
    """Equal on all ranks of one launch if the launcher provides such an id, else empty."""
    proof: Name = ""
    """That the sender knows the secret of this launch; equal on all its ranks. Empty if the launch has none."""
    attempt: Count = 0
    agent_version: Name = ""
    torch_version: Name = ""
    started: Time = 0.0
    """Unix time at attach."""
    start_step: Count = 0
    layers: Annotated[tuple[Layer, ...], msgspec.Meta(max_length=MAX_LAYERS)] = ()
    groups: Annotated[tuple[Group, ...], msgspec.Meta(max_length=MAX_GROUPS)] = ()
    wrapper: Name = ""
    """Class of the outermost module: DistributedDataParallel, FullyShardedDataParallel, ..."""
    visible: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()
    """What this agent monitors; everything else is shown as a blind spot."""
    blind: Annotated[dict[Name, Name], msgspec.Meta(max_length=64)] = {}
    """What this agent cannot monitor, each with the reason."""
    config: Settings = {}
    """The user's settings, for display and diagnosis."""
    facts: Settings = {}
    """Facts for the diagnosis: parameter count, dropout, activation and norm kinds, precision, batch size, ..."""
    modules: Annotated[tuple[Module, ...], msgspec.Meta(max_length=MAX_LAYERS)] = ()
    rollback: RollbackMode = "off"
    """What the run's owner allows."""
    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()
    """Empty for a job with one model. `loss` in the reports is that of the first part."""
    is_batching: bool = False
    """Whether it sends several reports in one message to a daemon that takes them, and so understands a Welcome."""


class Clipping(msgspec.Struct, frozen=True, array_like=True):
    """Gradient clipping in this step; None if not used."""

    max_norm: float | None = None
    """The limit; None where nothing was clipped, and an engine (DeepSpeed) has only computed the norm."""
    total_norm: float | None = None
    """Global norm before clipping, computed by the clipper, without the scaler's scale."""
    is_scaled: bool = False
    """Whether the gradients were still multiplied by the scaler's scale when they were clipped."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """The batch of a step: from the watched loader, or what the model was called with."""

    index: Count | None
    """None where no loader is watched."""
    epoch: Count = 0
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=16)] = ()
    num_bad: Count | None = None
    """Non-finite elements; counted on sampled steps and after an incident, else None."""
    lowest: float | None = None
    highest: float | None = None
    mean: float | None = None
    """Of all elements; equal from batch to batch only where the elements are."""
    num_bad_targets: Count | None = None
    """Targets of the loss that are not finite; this and the next two on sampled steps, where the loss shows them."""
    target_variance: float | None = None
    """Of real targets over the batch, at each place of them: the squared error of the best constant answer."""
    commonest_share: float | None = None
    """Share of the targets that are of the commonest class."""
    target_entropy: float | None = None
    """Entropy of the targets' classes, in nats: the loss of an answer by their frequencies. None of too few targets."""


class Mode(msgspec.Struct, frozen=True, array_like=True):
    """Train or eval mode, at the step's last forward with gradients enabled."""

    is_training: bool = True
    num_norms_in_eval: Count = 0
    num_dropouts_in_eval: Count = 0
    num_evaluations: Count = 0
    """Forwards of the step in eval mode, with gradients enabled, before that last one in train mode."""
    num_train_evaluations: Count = 0
    """Forwards of the step without gradients in train mode, of a model whose batch norms or dropouts act in it."""


class Scaler(msgspec.Struct, frozen=True, array_like=True):
    """A gradient scaler's state."""

    scale: float
    num_skipped: Count = 0
    """Steps it has skipped since the run began."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank's numbers of one optimizer step."""

    attempt: Count
    seq: Count
    step: Count
    model_step: Count
    time: Time
    """At the step boundary."""
    loss: float | None = None
    num_samples: Count | None = None
    lr: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_GROUPS)] = ()
    phases: Phases | None = None
    metrics: Scalars = {}
    local_grad_norm: float | None = None
    """L2 norm of this rank's gradient before the reduction; only on sampled steps."""
    part_losses: Annotated[tuple[float | None, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()
    """In the order of Hello's parts; None for a part without a loss in this step."""
    agent_seconds: float = 0.0
    """Time the agent spent on the training thread since the last report."""
    num_dropped: Count = 0
    """Reports dropped by this process since its start."""
    num_skipped: Count = 0
    """Updates skipped by `skip_step` since attach."""
    num_tokens: Count | None = None
    is_sampled: bool = False
    sample_every: Count = 0
    """Steps between two samples, in force; the agent increases it if samples cost too much."""
    norm_every: Count = 1
    """Steps between two measurements of gradient norms; more than 1 only if each step would cost too much."""
    phase_every: Count = 1
    """Steps between two measurements of phases and modes, likewise; in between a step has only its total time."""
    num_scheduler_steps: Count | None = None
    clipping: Clipping | None = None
    scaler: Scaler | None = None
    batch: Batch | None = None
    mode: Mode | None = None
    host_bytes: Count | None = None
    device_bytes: Count | None = None
    fingerprint: Fingerprint | None = None
    """Bit-exact over all parameters of a replicated model: if not equal on all ranks, the replicas have diverged."""
    slices: Annotated[dict[Name, tuple[Count, Count]], msgspec.Meta(max_length=64)] = {}
    arrays: dict[Name, Float32] = {}
    """float32 arrays by name; sent as raw frames, not in the header."""


class StepReports(msgspec.Struct, frozen=True, kw_only=True):
    """Reports of one rank in one message, in order: of steps so short that a message for each would cost too much."""

    reports: Annotated[tuple[StepReport, ...], msgspec.Meta(min_length=1, max_length=MAX_REPORTS)]


class ThinStep(msgspec.Struct, frozen=True, array_like=True):
    """One step of a run after its first, as far as it may differ from the one before it."""

    seconds: Seconds
    """Its total time, from one step boundary to the next."""
    loss: float | None = None
    lr: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_GROUPS)] = ()
    num_scheduler_steps: Count | None = None
    num_samples: Count | None = None
    num_tokens: Count | None = None
    batch: Batch | None = None


class StepRun(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps of one rank of which only the loss, the learning rates and the total time were measured."""

    first: StepReport
    steps: Annotated[tuple[ThinStep, ...], msgspec.Meta(max_length=MAX_RUN)]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something the user declared: a validation result, a data switch, a saved checkpoint, a warm-up's end."""

    attempt: Count
    step: Count
    time: Time
    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    fields: Settings = {}


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sent while the process is alive, whether or not it finishes steps."""

    step: Count
    since_step_seconds: Seconds = 0.0
    num_dropped: Count = 0
    num_failures: Count = 0
    state: Name = "training"
    """training, or disabled after repeated failures of the agent."""
    utilization: float | None = None
    """Recent device utilisation, if the driver reports it."""
    phase: Name = ""
    """Current phase of the training thread: data, forward, backward, optimizer or other; empty if unknown."""


class Bye(msgspec.Struct, frozen=True, kw_only=True):
    """The rank ends; `error` names the exception if it ends because of one, `signal` the signal."""

    step: Count
    error: Text = ""
    signal: Name = ""


class HelloRequest(msgspec.Struct, frozen=True):
    """The daemon does not know this peer (it was restarted, or the peer is new) and asks for its Hello."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The daemon has admitted this rank; sent after each Hello with `is_batching`."""

    max_reports: Count = 1
    """Reports that one message to this daemon may have; 1: single reports only."""
    max_run: Count = 0
    """Steps that one StepRun may have after its first; 0: this daemon takes none."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon refuses this peer's messages; the agent logs it once."""

    reason: Name
    detail: Text = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's judgement of the job, for rank 0: after its Hello, and when another incident is the worst one."""

    job: JobName
    url: Text
    """The job's live page."""
    health: Name
    """ok, or the severity of the worst open incident."""
    summary: Text = ""
    """Of that incident, as it was when this was sent."""


Up = Hello | StepReport | StepReports | StepRun | Event | Heartbeat | Bye | Ack | Holdings | PlanRequest
Down = Command | HelloRequest | Welcome | Refused | Terms | Plan | Verdict
Message = Up | Down
