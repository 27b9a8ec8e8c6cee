"""The metrics of a job as a whole: its state, its curves, its speed, and what is not seen of it."""

from caboose_daemon.out.metrics.metric import Section, counted, of_job
from caboose_daemon.steps.columns import PART_COLUMNS

JOBS = Section(
    "Jobs",
    "One series per job, as long as the daemon knows it.",
    (
        of_job(
            "caboose_job_info",
            "Wrapper, optimizer and precision of the job, as labels; the value is always 1",
            "Join it with other metrics to show these labels.",
            "wrapper",
            "optimizer",
            "precision",
        ),
        of_job(
            "caboose_job_up",
            "1 while at least one rank is live, 0 otherwise",
            "0 after the job has ended, failed or gone silent.",
        ),
        of_job("caboose_job_failed", "1 if a rank exited with an error, 0 otherwise", "0 is normal. 1 is a crash."),
        of_job(
            "caboose_job_severity",
            "Severity of the worst open incident: 0 none, 1 info, 2 warning, 3 critical",
            "0 is healthy.",
        ),
        of_job(
            "caboose_job_world_ranks",
            "Number of ranks the job was started with",
            "Compare it with caboose_job_live_ranks.",
        ),
        of_job(
            "caboose_job_live_ranks",
            "Ranks that have not exited and reported within warn_seconds of the rule rank_silent",
            "All ranks is normal. Fewer: a rank is gone.",
        ),
        of_job(
            "caboose_job_missing_ranks",
            "Ranks that should report and do not: silent, failed, or never seen",
            "0 is normal, also after the end of the job. Above 0 for long: a rank is gone.",
        ),
        of_job("caboose_job_attempt", "Number of the current attempt", "Rises with every restart and rollback."),
        of_job(
            "caboose_job_step", "Last aligned step", "Rises steadily. It falls when an older checkpoint is resumed."
        ),
        counted(
            "caboose_job_steps_total",
            "Steps aligned since the job was first seen",
            "Its rate is steps per second. A rate of 0 while the job runs is a stall.",
        ),
        of_job(
            "caboose_job_quarantined",
            "1 while the job is not judged, because the daemon failed on it repeatedly",
            "0 is normal. 1: no rule watches this job. The log of the daemon has the reason.",
        ),
        counted(
            "caboose_job_throttled_messages_total",
            "Messages of this job that were dropped unread, because it sends more than its share",
            "0 is normal. Above 0: the daemon cannot judge its steps beside other jobs; give it a daemon of its own.",
        ),
        counted(
            "caboose_job_duplicates_refused_total",
            "Processes of other launches that claimed this job's name and were refused, because 99 runs have it",
            "0 is normal. Above 0: two launches use one name; give each its own CABOOSE_JOB.",
        ),
    ),
)

CURVES = Section(
    "Curves",
    "Values of the last aligned step. NaN is exported as NaN; alerts use the counters instead.",
    (
        of_job(
            "caboose_loss",
            "Training loss of the last step over the ranks: mean, min and max",
            "A slow fall is normal. A large gap between min and max: one rank differs.",
            "stat",
        ),
        of_job(
            "caboose_learning_rate",
            "Learning rate of a parameter group",
            "Follows the schedule. A jump outside the schedule is a fault.",
            "group",
        ),
        of_job(
            "caboose_gradient_norm",
            "Global L2 norm of the gradient before clipping",
            "Stable or slowly falling is normal. A rise is the earliest sign of most spikes.",
        ),
        *(of_job(column.metric, column.help, column.tells, "part") for column in PART_COLUMNS),
        of_job(
            "caboose_clip_ratio",
            "Factor the gradient was multiplied by when it was clipped; 1 without clipping",
            "Near 1 is normal. Far below 1 for long: the clipping bound, not the learning rate, sets the step size.",
        ),
        counted(
            "caboose_clipped_steps_total",
            "Steps whose gradient was clipped",
            "Divide its rate by that of caboose_job_steps_total to get the share of clipped steps.",
        ),
        counted("caboose_non_finite_steps_total", "Steps with a NaN or infinite loss or gradient", "Must not rise."),
        of_job(
            "caboose_loss_scale",
            "Loss scale of mixed precision",
            "One halving now and then is normal. Repeated halvings mean overflow.",
        ),
        counted(
            "caboose_skipped_steps_total",
            "Steps the loss scaler skipped",
            "A few at the start are normal: the scaler searches for its scale.",
        ),
        of_job(
            "caboose_gradient_noise_ratio",
            "Gradient noise scale divided by the batch size, from local and averaged norms",
            "About 1 is efficient. Far above 1: the batch is too small. Far below 1: the batch is wastefully large.",
        ),
        of_job(
            "caboose_user_metric",
            "Last value of a metric that the training script reports with its steps, mean over ranks, by name",
            "What is normal depends on the metric. At most 16 names have a series.",
            "name",
        ),
        of_job(
            "caboose_validation_loss",
            "Last validation loss",
            "Falls with the training loss in a healthy run. Rising while training falls: overfitting.",
        ),
        of_job("caboose_validation_step", "Step of the last validation", "Shows how old the validation is."),
        of_job(
            "caboose_validation_metric",
            "Last value of a validation metric that the user reports, by name",
            "What is normal depends on the metric.",
            "stat",
        ),
    ),
)

SPEED = Section(
    "Speed",
    "Means over the ranks of the last aligned step.",
    (
        of_job(
            "caboose_phase_seconds",
            "Mean duration of a phase of the last step, over the ranks",
            "Shows where the time of a step goes. Stable is normal.",
            "phase",
        ),
        of_job(
            "caboose_samples_per_second",
            "Samples of all ranks per second, over the last steps",
            "Stable is normal. A lasting fall is a slowdown.",
        ),
        of_job(
            "caboose_tokens_per_second",
            "Tokens of all ranks per second, over the last steps",
            "Stable is normal. A lasting fall is a slowdown.",
        ),
        of_job(
            "caboose_agent_step_seconds",
            "Mean time the agent took on the training thread in the last step",
            "Below 1 % of the step time is normal.",
        ),
        of_job(
            "caboose_agent_overhead_ratio",
            "Share of the step time that the agent takes, over the last steps",
            "Below 0.01 is normal: that is the default limit.",
        ),
    ),
)

SIGHT = Section(
    "Blind spots and lost reports",
    "A quantity that Caboose cannot see is never exported as 0.",
    (
        of_job(
            "caboose_blind",
            "1 for each quantity the agent cannot see",
            "No series is normal. The page of the job gives the reason.",
            "stat",
        ),
        of_job("caboose_rules_abstaining", "Rules that cannot judge this job", "`caboose rules` lists what they need."),
        of_job("caboose_layers_unseen", "Layers whose gradient was not measured in the last step", "0 is normal."),
        counted(
            "caboose_reports_late_total",
            "Reports that arrived after their step was closed",
            "0 is normal. A rise: a slow network.",
        ),
        counted(
            "caboose_steps_incomplete_total",
            "Steps closed without a report from every rank",
            "0 is normal. A rise: a rank is slow or gone.",
        ),
        counted(
            "caboose_reports_missed_total",
            "Reports that never arrived, counted by gaps in sequence numbers",
            "0 is normal. A rise: reports are lost.",
        ),
        counted(
            "caboose_reports_dropped_total",
            "Reports that agents dropped because their queue was full",
            "0 is normal. A rise: the daemon or the network is too slow.",
        ),
        of_job(
            "caboose_names_hidden",
            "Groups, metrics, hosts, incidents and other names without series, because there are too many",
            "Must be 0. Above 0: the job keeps creating new names; see its page.",
        ),
        of_job("caboose_agents_disabled", "Ranks whose agent turned itself off after failures", "Must be 0."),
    ),
)
