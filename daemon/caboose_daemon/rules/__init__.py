"""The rules, one file each, as one explicit tuple."""

from caboose_daemon.rules.activation_collapse import ActivationCollapse
from caboose_daemon.rules.attention_logits import AttentionLogits
from caboose_daemon.rules.bad_batch import BadBatch
from caboose_daemon.rules.batch_size import BatchSize
from caboose_daemon.rules.clipping import Clipping
from caboose_daemon.rules.config_advice import ConfigAdvice
from caboose_daemon.rules.data_repetition import DataRepetition
from caboose_daemon.rules.data_starved import DataStarved
from caboose_daemon.rules.dead_units import DeadUnits
from caboose_daemon.rules.divergence import Divergence
from caboose_daemon.rules.embedding_growth import EmbeddingGrowth
from caboose_daemon.rules.eval_mode import EvalMode
from caboose_daemon.rules.expert_collapse import ExpertCollapse
from caboose_daemon.rules.frozen_parameters import FrozenParameters
from caboose_daemon.rules.generalisation_gap import GeneralisationGap
from caboose_daemon.rules.gradient_explosion import GradientExplosion
from caboose_daemon.rules.gradient_vanishing import GradientVanishing
from caboose_daemon.rules.job_stalled import JobStalled
from caboose_daemon.rules.loss_scale_collapse import LossScaleCollapse
from caboose_daemon.rules.loss_spike import LossSpike
from caboose_daemon.rules.lr_schedule import LrSchedule
from caboose_daemon.rules.lr_too_high import LrTooHigh
from caboose_daemon.rules.lr_too_low import LrTooLow
from caboose_daemon.rules.memory_growth import MemoryGrowth
from caboose_daemon.rules.metric_divergence import MetricDivergence
from caboose_daemon.rules.monitor_blind import MonitorBlind
from caboose_daemon.rules.noise_growth import NoiseGrowth
from caboose_daemon.rules.non_finite import NonFinite
from caboose_daemon.rules.not_learning import NotLearning
from caboose_daemon.rules.oscillation import Oscillation
from caboose_daemon.rules.overfitting import Overfitting
from caboose_daemon.rules.parts.rule import AnyRule
from caboose_daemon.rules.plateau import Plateau
from caboose_daemon.rules.rank_outlier import RankOutlier
from caboose_daemon.rules.rank_silent import RankSilent
from caboose_daemon.rules.replica_desync import ReplicaDesync
from caboose_daemon.rules.saturation import Saturation
from caboose_daemon.rules.straggler import Straggler
from caboose_daemon.rules.throughput_regression import ThroughputRegression
from caboose_daemon.rules.underfitting import Underfitting

RULES: tuple[type[AnyRule], ...] = (
    NonFinite,
    GradientExplosion,
    GradientVanishing,
    DeadUnits,
    Saturation,
    ActivationCollapse,
    ExpertCollapse,
    AttentionLogits,
    EmbeddingGrowth,
    LossScaleCollapse,
    LossSpike,
    Divergence,
    NotLearning,
    Plateau,
    Oscillation,
    Overfitting,
    GeneralisationGap,
    Underfitting,
    MetricDivergence,
    DataRepetition,
    LrTooHigh,
    LrTooLow,
    Clipping,
    FrozenParameters,
    EvalMode,
    BadBatch,
    ConfigAdvice,
    LrSchedule,
    BatchSize,
    NoiseGrowth,
    ReplicaDesync,
    RankOutlier,
    Straggler,
    RankSilent,
    JobStalled,
    DataStarved,
    ThroughputRegression,
    MemoryGrowth,
    MonitorBlind,
)

__all__ = ["RULES", "AnyRule"]
