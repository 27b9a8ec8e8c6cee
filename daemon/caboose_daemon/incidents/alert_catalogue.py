"""The texts of the alerts on training, by rule: what is wrong, what to do first, what not to do, and the ticket's wait.

Design
------
Every rule has both severities, also the rules that never page alone: an incident is as severe as its worst episode and
carries the name of its lead rule.

Pages do not wait. The daemon calls an incident critical only after it has persisted or a second signal confirms it. A
ticket waits until the problem can be expected to last: most incidents that resolve without action (a spike that
recovers) end before that and make no ticket. A short event that still needs attention (`EVENT`) must fire within the
two minutes for which every incident is exported.
"""

from dataclasses import dataclass

EVENT = "1m"
SOON = "5m"
STATE = "15m"
SLOW = "30m"


@dataclass(frozen=True)
class AlertEntry:
    """What is known of one rule's alerts before any incident."""

    summary: str
    """What is wrong. Follows the job's name and a colon."""
    first_fix: str
    """What to do first, in one or two sentences."""
    avoid: str
    """What not to do, in one sentence."""
    ticket_after: str
    """`for` of the ticket."""


CATALOGUE: dict[str, AlertEntry] = {
    "non_finite": AlertEntry(
        "loss, gradients or weights are NaN or infinite",
        "Stop the job. Restart from a checkpoint saved before the onset step and skip the batches around it.",
        "Do not restart unchanged: the same NaN comes again.",
        EVENT,
    ),
    "gradient_explosion": AlertEntry(
        "the gradient norm is far above its usual level",
        "If the loss is stable, clip gradients at 1.0 and continue. If the loss has risen, restart from before the"
        " onset step with a third of the learning rate.",
        "Do not replay the same batches at the same learning rate.",
        SOON,
    ),
    "gradient_vanishing": AlertEntry(
        "gradients shrink towards the input; the first layers get almost none",
        "In the next run, add residual connections or norm layers, or replace sigmoid and tanh with ReLU or GELU.",
        "Do not raise the learning rate: it applies to the last layers too.",
        STATE,
    ),
    "dead_units": AlertEntry(
        "many units of a ReLU layer are dead: they output 0 for every sample",
        "Lower the learning rate and check the biases of the named layer. To recover dead units, restart from before"
        " they died.",
        "Do not wait: dead units do not recover.",
        STATE,
    ),
    "saturation": AlertEntry(
        "most units of a sigmoid or tanh layer are saturated",
        "Use smaller initial weights, or add a norm layer before the named activation.",
        "Do not raise the learning rate: it saturates more units.",
        STATE,
    ),
    "activation_collapse": AlertEntry(
        "the output of a layer has become almost constant, or far wider than before",
        "Check what changed at the onset step: loss spike, learning rate, data. If the loss is worse, restart from"
        " before the onset.",
        "Do not continue from collapsed weights with a lower learning rate: they rarely recover.",
        STATE,
    ),
    "expert_collapse": AlertEntry(
        "the router of a mixture-of-experts layer sends almost all tokens to a few experts",
        "Check that the load-balancing loss is in the loss, and raise its coefficient; or use bias-based balancing.",
        "Do not continue for long: experts without tokens learn nothing and fall further behind.",
        STATE,
    ),
    "attention_logits": AlertEntry(
        "attention logits grow without a bound",
        "Normalise queries and keys (QK norm), or lower the learning rate. If the loss is worse, restart from before"
        " the onset.",
        "Do not rely on gradient clipping: it does not hold the weights of queries and keys.",
        STATE,
    ),
    "embedding_growth": AlertEntry(
        "the embedding or the output layer grows away from the rest of the model",
        "Add a z-loss on the output logits, about 1e-4 * logsumexp(logits) ** 2, or decay the weights of that layer.",
        "Do not lower the learning rate of the whole model first: one layer drifts.",
        STATE,
    ),
    "loss_scale_collapse": AlertEntry(
        "the loss scale of mixed precision keeps falling; steps are skipped",
        "Use bfloat16 if the device supports it. Otherwise find the value that overflows and clamp it.",
        "Do not set a fixed scale: the overflow stays and becomes NaN.",
        SOON,
    ),
    "loss_spike": AlertEntry(
        "the loss is far above its recent level",
        "If the loss is recovering, wait. If not, restart from before the onset step and skip the batches around it.",
        "Do not roll back at once: most spikes recover.",
        SOON,
    ),
    "divergence": AlertEntry(
        "the loss has diverged and is not recovering",
        "Stop the job. Restart from a checkpoint saved before the onset step, with a third of the learning rate.",
        "Do not use the newest checkpoint without checking its step.",
        SOON,
    ),
    "not_learning": AlertEntry(
        "the loss has not fallen since the run started",
        "Try to overfit a single batch. If that fails, check for frozen parameters, eval mode or a detached graph.",
        "Do not add epochs.",
        SLOW,
    ),
    "plateau": AlertEntry(
        "the loss has stopped falling before the end of the run",
        "Compare the learning rate with its peak. If it has decayed to almost 0, restart the schedule; otherwise raise"
        " the learning rate.",
        "Do not change the optimizer first.",
        SLOW,
    ),
    "oscillation": AlertEntry(
        "the loss oscillates and does not settle",
        "Divide the learning rate by 3, or use a larger batch.",
        "Do not hide it by smoothing the curve.",
        SLOW,
    ),
    "overfitting": AlertEntry(
        "validation gets worse while the training loss still falls",
        "Keep the checkpoint nearest the best validation. Then stop, or continue from it with more regularisation.",
        "Do not delete old checkpoints.",
        SLOW,
    ),
    "generalisation_gap": AlertEntry(
        "training is far better than validation, which no longer improves",
        "Check that validation data is prepared as training data. Then add data, augmentation, weight decay or"
        " dropout.",
        "Do not train longer or use a larger model.",
        SLOW,
    ),
    "underfitting": AlertEntry(
        "training and validation loss are both high and flat",
        "Check that the model can overfit a small subset. Then try a larger model or less regularisation.",
        "Do not add epochs: the loss is flat.",
        SLOW,
    ),
    "metric_divergence": AlertEntry(
        "validation loss and validation metric disagree",
        "Check what the evaluation passes to the metric: logits, labels, padding.",
        "Do not choose a checkpoint by either number before you know which one is right.",
        SLOW,
    ),
    "data_repetition": AlertEntry(
        "the loss falls in stairs at the borders of epochs: training samples are memorised",
        "Keep the checkpoint with the best validation. Then use more data, fewer epochs or more regularisation.",
        "Do not read the training loss as progress.",
        SLOW,
    ),
    "lr_too_high": AlertEntry(
        "the learning rate is too high: updates are too large for the weights",
        "Divide the learning rate by 10 and add a warm-up. If it was too high from the start, start the run again.",
        "Do not add clipping instead: it hides the learning rate.",
        SOON,
    ),
    "lr_too_low": AlertEntry(
        "the learning rate is too low: the weights hardly change",
        "Multiply the learning rate by 10 and check the update ratio again; about 1e-3 is normal.",
        "Do not add steps instead.",
        STATE,
    ),
    "clipping": AlertEntry(
        "most steps are clipped: the clipping bound, not the learning rate, sets the step size",
        "Compare the gradient norm with the clipping bound. Raise the bound, or lower the learning rate if the norm"
        " has grown.",
        "Do not turn clipping off in a running job.",
        SLOW,
    ),
    "frozen_parameters": AlertEntry(
        "parameters that should learn get no gradient or no update",
        "Check that the forward pass uses the named layer and that the optimizer holds its parameters.",
        "Do not set find_unused_parameters=True to hide it.",
        STATE,
    ),
    "eval_mode": AlertEntry(
        "training steps run in eval mode",
        "Call model.train() after every evaluation.",
        "Do not use an older checkpoint than the newest one: its weights are usable.",
        SOON,
    ),
    "bad_batch": AlertEntry(
        "the loss jumped on an abnormal batch",
        "Inspect the samples of the named batches; filter them or clamp the inputs.",
        "Do not change the learning rate for one bad batch.",
        EVENT,
    ),
    "config_advice": AlertEntry(
        "the run uses settings that often cause failures",
        "Read the list. No action is needed if the run does well.",
        "Do not restart a healthy run for it.",
        SLOW,
    ),
    "lr_schedule": AlertEntry(
        "the learning rate left its schedule: it jumped, was reset, is 0, or never changes",
        "After a resume, load the scheduler state together with the model state.",
        "Do not let a run continue at a higher learning rate than before its resume.",
        EVENT,
    ),
    "batch_size": AlertEntry(
        "the batch is far too small for the gradient noise",
        "Accumulate gradients, or lower the learning rate.",
        "Do not change the batch size during warm-up.",
        SLOW,
    ),
    "noise_growth": AlertEntry(
        "the gradient noise scale has outgrown the batch: a larger batch would now pay",
        "Raise the batch in steps as the run goes on, by accumulating gradients or with more ranks.",
        "Do not raise it beyond the gradient noise scale: that wastes samples.",
        SLOW,
    ),
    "replica_desync": AlertEntry(
        "the replicas of the model are no longer identical",
        "Stop the job. Check memory and device of the named host. Restart from a checkpoint saved before the last"
        " step at which all replicas were equal.",
        "Do not continue because the loss looks normal.",
        SOON,
    ),
    "rank_outlier": AlertEntry(
        "the loss or gradient of one rank stays different from all other ranks",
        "Check the data of the named rank. Then move the rank to another host and see whether the outlier moves too.",
        "Do not ignore it because the mean over ranks looks normal.",
        STATE,
    ),
    "straggler": AlertEntry(
        "one rank is slow and all other ranks wait for it",
        "Check the named host: data loader, clocks, temperature, other processes. If it stays slow, cordon it.",
        "Do not restart now: wait for the next checkpoint.",
        STATE,
    ),
    "rank_silent": AlertEntry(
        "a rank sends no heartbeat, never started, or exited with an error",
        "On the named host, check whether the process runs, is stopped, or was killed for memory. The other ranks wait"
        " for it.",
        "Do not wait for the collective to time out.",
        EVENT,
    ),
    "job_stalled": AlertEntry(
        "all processes are alive, but no step completes",
        "Run py-spy dump on the named rank, or on several ranks: the one that is not in the same collective as the"
        " others is the cause.",
        "Do not kill the job before you have the dumps.",
        SOON,
    ),
    "data_starved": AlertEntry(
        "a large share of every step is spent waiting for data",
        "Raise num_workers and prefetch_factor, set pin_memory, and check the disk.",
        "Do not restart for this alone: change it at the next restart.",
        STATE,
    ),
    "memory_growth": AlertEntry(
        "a process keeps more memory with every step",
        "Look for what the loop keeps: losses with their graph, lists, caches. Make sure that a checkpoint is written"
        " before the memory is full.",
        "Do not only restart from time to time: it hides the leak.",
        SLOW,
    ),
    "throughput_regression": AlertEntry(
        "throughput is well below the best this job has sustained",
        "Find the phase that grew: data means the loader, backward means the network or a straggler.",
        "Do not restart to see whether it helps: that resets the baseline.",
        STATE,
    ),
    "monitor_blind": AlertEntry(
        "Caboose sees only part of this job: agents are off, or reports are lost",
        "Agent off: read the log of the named rank. Reports lost: check the load of the daemon.",
        "Do not restart a training job only for its monitor.",
        STATE,
    ),
}
