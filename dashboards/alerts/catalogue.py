"""What a pager says of each rule: one line on what is wrong, the fix to try first, and how patient a ticket is.

Design
------
Every rule has both severities, also those that never page by themselves: an incident is as severe as the worst of its
members, and is named after the one that leads it.

Pages do not wait: what is critical has lasted, or has a second witness, before the daemon calls it so. A ticket waits
until the matter can be expected to stay: most incidents that end by themselves (a spike that comes back) end before
that and make none. What is over in a moment and still wants a look (`EVENT`) has to be quicker than the two minutes for
which every incident is exported.
"""

from dataclasses import dataclass

EVENT = "1m"
SOON = "5m"
STATE = "15m"
SLOW = "30m"


@dataclass(frozen=True)
class Words:
    """One rule, on a pager."""

    wrong: str
    """Goes on after the job's name and a colon."""
    fix: str
    """One or two short sentences: what to try first."""
    ticket_after: str
    """`for` of the ticket."""


CATALOGUE: dict[str, Words] = {
    "non_finite": Words(
        "NaN or infinity in loss, gradients or weights",
        "Stop, go back to a checkpoint from before the onset, and look at the named rank's batch and layer.",
        EVENT,
    ),
    "gradient_explosion": Words(
        "the gradient norm has left its level upwards",
        "If the loss holds, clip at 1.0 and go on; if not, go back before the onset with a third of the learning rate.",
        SOON,
    ),
    "gradient_vanishing": Words(
        "gradients vanish on their way to the input layers",
        "Add residual connections or norm layers, or replace sigmoid and tanh by ReLU or GELU.",
        STATE,
    ),
    "dead_units": Words(
        "many units of a layer fire for no sample",
        "Lower the learning rate and look at the biases of the named layer; to revive units that died, go back.",
        STATE,
    ),
    "saturation": Words(
        "most units of a layer stand on the flat ends of their activation",
        "Smaller initial weights, or a norm layer before the named activation.",
        STATE,
    ),
    "activation_collapse": Words(
        "a layer's output has shrunk to nothing or blown up",
        "Look at what changed at the onset (spike, learning rate, data) and go back before it.",
        STATE,
    ),
    "loss_scale_collapse": Words(
        "the loss scale of mixed precision keeps falling, so steps are skipped",
        "Use bfloat16 where the device has it; else find what overflows and clamp it.",
        SOON,
    ),
    "loss_spike": Words(
        "the loss has jumped far above its level",
        "If it is coming back, leave it alone; if not, go back before the onset and skip the batches around it.",
        SOON,
    ),
    "divergence": Words(
        "the loss has left its basin and does not come back",
        "Stop, go back to a checkpoint from before the onset, with a third of the learning rate.",
        SOON,
    ),
    "not_learning": Words(
        "the loss has not moved since the run began",
        "Try to overfit a single batch; if that fails, look for frozen parameters, eval mode or a detached graph.",
        SLOW,
    ),
    "plateau": Words(
        "the run has stopped learning before its end",
        "Compare learning rate and peak: restart a schedule that has decayed away, else raise the rate.",
        SLOW,
    ),
    "oscillation": Words(
        "the loss swings to and fro and does not settle",
        "A third of the learning rate, or a larger batch.",
        SLOW,
    ),
    "overfitting": Words(
        "validation gets worse while training still improves",
        "Keep the checkpoint nearest the best validation; regularise or stop there.",
        SLOW,
    ),
    "underfitting": Words(
        "training and validation loss are both high and flat",
        "Check that a small subset can be overfitted; then a larger model or less regularisation.",
        SLOW,
    ),
    "metric_divergence": Words(
        "validation loss and validation metric tell different stories",
        "Check what the evaluation feeds to the metric before trusting either number.",
        SLOW,
    ),
    "lr_too_high": Words(
        "the learning rate is too high: updates are too large for the weights",
        "A tenth of the learning rate, with a warm-up; from the start, if it was so from the start.",
        SOON,
    ),
    "lr_too_low": Words(
        "the learning rate is too low: weights hardly move",
        "Raise the learning rate ten times and look at the update ratio again; about 1e-3 is usual.",
        STATE,
    ),
    "clipping": Words(
        "most steps are clipped, so the clipper and not the learning rate sets their length",
        "Compare the norm with the clipper's bound: raise the bound, or lower the rate if the norms have grown.",
        SLOW,
    ),
    "frozen_parameters": Words(
        "parameters that should learn get no gradient or no update",
        "Check that the named layer is used in the forward and that the optimizer holds it.",
        STATE,
    ),
    "eval_mode": Words(
        "training steps run in eval mode",
        "Call model.train() after every evaluation.",
        SOON,
    ),
    "bad_batch": Words(
        "a batch that is itself odd has sent the loss up",
        "Look at the samples behind the named batches; filter them or clamp the inputs.",
        EVENT,
    ),
    "config_advice": Words(
        "settings that are known to cause trouble",
        "Read the list with caboose diagnose; nothing needs to be done if the run does well.",
        SLOW,
    ),
    "lr_schedule": Words(
        "the learning rate does what its schedule would not",
        "After a resume, load the scheduler's state together with the model's.",
        EVENT,
    ),
    "batch_size": Words(
        "the batch is far too small for this gradient noise",
        "Accumulate gradients, or lower the learning rate.",
        SLOW,
    ),
    "replica_desync": Words(
        "the replicas of the model are no longer equal",
        "Stop; check memory and device of the named host; restart from before the last step at which all were equal.",
        SOON,
    ),
    "rank_outlier": Words(
        "one rank's loss or gradient stays apart from its peers",
        "Look at what the named rank reads; move it to another host and see whether the outlier moves too.",
        STATE,
    ),
    "straggler": Words(
        "one rank is slower than the others, and all wait for it",
        "Look at the named host: loader, clocks, temperature, other processes; cordon it if it stays.",
        STATE,
    ),
    "rank_silent": Words(
        "a rank has stopped talking, never showed up, or left with an error",
        "Look at the named host: is the process there, stopped, or killed for memory? The others wait for it.",
        EVENT,
    ),
    "job_stalled": Words(
        "every process lives, but no step ends",
        "py-spy dump on the named rank, else on any: all wait in the same collective but for the one to look for.",
        SOON,
    ),
    "data_starved": Words(
        "the job waits for its data",
        "More num_workers, pin_memory and prefetch_factor; look at the disk.",
        STATE,
    ),
    "throughput_regression": Words(
        "the job has become slower than it was",
        "Look at the phase that grew: data is the loader, backward the network or a straggler.",
        STATE,
    ),
    "monitor_blind": Words(
        "Caboose does not see all of this job: agents are off, or reports are lost",
        "Read the log of the named rank for why its agent is off; for lost reports see the load of the daemon.",
        STATE,
    ),
}
