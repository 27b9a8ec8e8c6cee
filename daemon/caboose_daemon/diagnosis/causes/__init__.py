"""The causes, one file each. `CAUSES` is the whole list: a cause that is not in it is not weighed."""

from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes.agent_off import AgentOff
from caboose_daemon.diagnosis.causes.attention_unbounded import AttentionUnbounded
from caboose_daemon.diagnosis.causes.bad_init import BadInit
from caboose_daemon.diagnosis.causes.bad_shard import BadShard
from caboose_daemon.diagnosis.causes.batch_too_large import BatchTooLarge
from caboose_daemon.diagnosis.causes.batch_too_small import BatchTooSmall
from caboose_daemon.diagnosis.causes.bootstrapped_targets import BootstrappedTargets
from caboose_daemon.diagnosis.causes.budget_too_short import BudgetTooShort
from caboose_daemon.diagnosis.causes.class_imbalance import ClassImbalance
from caboose_daemon.diagnosis.causes.clip_before_unscale import ClipBeforeUnscale
from caboose_daemon.diagnosis.causes.clip_too_tight import ClipTooTight
from caboose_daemon.diagnosis.causes.constant_input import ConstantInput
from caboose_daemon.diagnosis.causes.converged import Converged
from caboose_daemon.diagnosis.causes.data_changed import DataChanged
from caboose_daemon.diagnosis.causes.dying_relu import DyingRelu
from caboose_daemon.diagnosis.causes.eval_mode_left_on import EvalModeLeftOn
from caboose_daemon.diagnosis.causes.exploding_gradients import ExplodingGradients
from caboose_daemon.diagnosis.causes.fp16_overflow import Fp16Overflow
from caboose_daemon.diagnosis.causes.gradients_not_zeroed import GradientsNotZeroed
from caboose_daemon.diagnosis.causes.graph_disconnected import GraphDisconnected
from caboose_daemon.diagnosis.causes.hardware_fault import HardwareFault
from caboose_daemon.diagnosis.causes.input_not_finite import InputNotFinite
from caboose_daemon.diagnosis.causes.label_smoothing import LabelSmoothing
from caboose_daemon.diagnosis.causes.labels_shuffled import LabelsShuffled
from caboose_daemon.diagnosis.causes.log_of_zero import LogOfZero
from caboose_daemon.diagnosis.causes.logits_drift import LogitsDrift
from caboose_daemon.diagnosis.causes.lr_decayed import LrDecayed
from caboose_daemon.diagnosis.causes.lr_too_high import LrTooHigh
from caboose_daemon.diagnosis.causes.lr_too_low import LrTooLow
from caboose_daemon.diagnosis.causes.machine_slower import MachineSlower
from caboose_daemon.diagnosis.causes.memorising import Memorising
from caboose_daemon.diagnosis.causes.memory_pressure import MemoryPressure
from caboose_daemon.diagnosis.causes.metric_bug import MetricBug
from caboose_daemon.diagnosis.causes.momentum_too_high import MomentumTooHigh
from caboose_daemon.diagnosis.causes.monitor_overrun import MonitorOverrun
from caboose_daemon.diagnosis.causes.optimizer_unsuited import OptimizerUnsuited
from caboose_daemon.diagnosis.causes.outlier_batch import OutlierBatch
from caboose_daemon.diagnosis.causes.over_regularised import OverRegularised
from caboose_daemon.diagnosis.causes.overconfident import Overconfident
from caboose_daemon.diagnosis.causes.parameters_frozen import ParametersFrozen
from caboose_daemon.diagnosis.causes.parameters_unregistered import ParametersUnregistered
from caboose_daemon.diagnosis.causes.precision_lost import PrecisionLost
from caboose_daemon.diagnosis.causes.rank_failed import RankFailed
from caboose_daemon.diagnosis.causes.rank_hung import RankHung
from caboose_daemon.diagnosis.causes.rank_killed import RankKilled
from caboose_daemon.diagnosis.causes.rate_not_scaled import RateNotScaled
from caboose_daemon.diagnosis.causes.reports_lost import ReportsLost
from caboose_daemon.diagnosis.causes.risky_settings import RiskySettings
from caboose_daemon.diagnosis.causes.router_unbalanced import RouterUnbalanced
from caboose_daemon.diagnosis.causes.saddle import Saddle
from caboose_daemon.diagnosis.causes.schedule_jump import ScheduleJump
from caboose_daemon.diagnosis.causes.scheduler_idle import SchedulerIdle
from caboose_daemon.diagnosis.causes.scheduler_not_restored import SchedulerNotRestored
from caboose_daemon.diagnosis.causes.slow_loader import SlowLoader
from caboose_daemon.diagnosis.causes.slow_rank import SlowRank
from caboose_daemon.diagnosis.causes.slowing_steps import SlowingSteps
from caboose_daemon.diagnosis.causes.softmax_twice import SoftmaxTwice
from caboose_daemon.diagnosis.causes.too_little_capacity import TooLittleCapacity
from caboose_daemon.diagnosis.causes.uneven_update import UnevenUpdate
from caboose_daemon.diagnosis.causes.unnormalised_input import UnnormalisedInput
from caboose_daemon.diagnosis.causes.validation_in_train_mode import ValidationInTrainMode
from caboose_daemon.diagnosis.causes.validation_shift import ValidationShift
from caboose_daemon.diagnosis.causes.vanishing_depth import VanishingDepth
from caboose_daemon.diagnosis.causes.weights_decay_away import WeightsDecayAway
from caboose_daemon.diagnosis.causes.wrong_loss import WrongLoss

CAUSES: tuple[Cause, ...] = (
    AgentOff(),
    AttentionUnbounded(),
    BadInit(),
    BadShard(),
    BatchTooLarge(),
    BatchTooSmall(),
    BootstrappedTargets(),
    BudgetTooShort(),
    ClassImbalance(),
    ClipBeforeUnscale(),
    ClipTooTight(),
    ConstantInput(),
    Converged(),
    DataChanged(),
    DyingRelu(),
    EvalModeLeftOn(),
    ExplodingGradients(),
    Fp16Overflow(),
    GradientsNotZeroed(),
    GraphDisconnected(),
    HardwareFault(),
    InputNotFinite(),
    LabelSmoothing(),
    LabelsShuffled(),
    LogOfZero(),
    LogitsDrift(),
    LrDecayed(),
    LrTooHigh(),
    LrTooLow(),
    MachineSlower(),
    Memorising(),
    MemoryPressure(),
    MetricBug(),
    MomentumTooHigh(),
    MonitorOverrun(),
    OptimizerUnsuited(),
    OutlierBatch(),
    OverRegularised(),
    Overconfident(),
    ParametersFrozen(),
    ParametersUnregistered(),
    PrecisionLost(),
    RankFailed(),
    RankHung(),
    RankKilled(),
    RateNotScaled(),
    ReportsLost(),
    RiskySettings(),
    RouterUnbalanced(),
    Saddle(),
    ScheduleJump(),
    SchedulerIdle(),
    SchedulerNotRestored(),
    SlowLoader(),
    SlowRank(),
    SlowingSteps(),
    SoftmaxTwice(),
    TooLittleCapacity(),
    UnevenUpdate(),
    UnnormalisedInput(),
    ValidationInTrainMode(),
    ValidationShift(),
    VanishingDepth(),
    WeightsDecayAway(),
    WrongLoss(),
)
