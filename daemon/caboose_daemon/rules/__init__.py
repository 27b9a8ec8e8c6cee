"""The rules, one file each, as one explicit tuple."""

from caboose_daemon.rules.loss_spike import LossSpike
from caboose_daemon.rules.non_finite import NonFinite
from caboose_daemon.rules.rank_silent import RankSilent
from caboose_daemon.rules.rule import AnyRule

RULES: tuple[type[AnyRule], ...] = (NonFinite, LossSpike, RankSilent)

__all__ = ["RULES", "AnyRule"]
