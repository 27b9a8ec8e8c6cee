"""Layers: one job by layer. Which layers explode, vanish, die, saturate, or do not learn?"""

from collections.abc import Iterator

from grafana_foundation_sdk.builders import dashboard as build

from caboose_daemon.out.metrics.table_of_layers import LAYER_STATISTICS, PART_STATISTICS
from caboose_daemon.rules.attention_logits import AttentionLogitsConfig
from caboose_daemon.rules.dead_units import DeadUnitsConfig
from caboose_daemon.rules.expert_collapse import ExpertCollapseConfig
from caboose_daemon.rules.lr_too_high import LrTooHighConfig
from caboose_daemon.rules.lr_too_low import LrTooLowConfig
from caboose_daemon.rules.saturation import SaturationConfig
from dashboards.source.board import board
from dashboards.source.look import FINE, NOTED, PAGED, WARNED
from dashboards.source.panels import Column, Curve, Panel, Steps, curves, heat, number, table
from dashboards.source.queries import gauge

DEAD, SATURATED = DeadUnitsConfig(), SaturationConfig()
TITLES = {
    "gradient_norm": "Gradient norm",
    "update_ratio": "Update size",
    "activation_std": "Activation spread",
    "weight_norm": "Weight norm",
    "dead_units_ratio": "Dead units",
    "saturated_units_ratio": "Saturated units",
}
assert TITLES.keys() == LAYER_STATISTICS.keys(), "every statistic has a panel title"
PART_TITLES = {
    "router_entropy_ratio": "Router entropy",
    "router_dead_experts_ratio": "Dead experts",
    "attention_logit": "Attention logits",
}
assert PART_TITLES.keys() == PART_STATISTICS.keys(), "every statistic has a panel title"
SHARES = ("dead_units_ratio", "saturated_units_ratio")
RULES = {
    "gradient_norm": ("gradient_vanishing", "gradient_explosion"),
    "update_ratio": ("lr_too_high", "lr_too_low", "frozen_parameters"),
    "activation_std": ("activation_collapse",),
    "weight_norm": ("replica_desync", "embedding_growth"),
    "dead_units_ratio": ("dead_units",),
    "saturated_units_ratio": ("saturation", "eval_mode"),
}
STEPS: dict[str, Steps] = {
    "update_ratio": ((LrTooLowConfig().min_update, FINE), (LrTooHighConfig().max_update, PAGED)),
    "dead_units_ratio": ((DEAD.share, WARNED), (DEAD.critical_share, PAGED)),
    "saturated_units_ratio": ((SATURATED.share, WARNED),),
}
BASES = {"update_ratio": NOTED}
"""The colour below the first threshold, where that is not normal: an update can be too small."""
OF_ACTIVATIONS = ("dead_units_ratio", "saturated_units_ratio", "activation_std")
SMALLEST = "1e-12"
"""Smaller values are raised to this before the logarithm: a layer without gradient would stretch the scale."""


def layers() -> build.Dashboard:
    return board(
        "layers",
        "Layers",
        "One job by layer: every statistic over depth and time, and the worst layers by name.",
        [
            ("Worst layers by name", [*_worst(), *_offenders()]),
            ("By depth over time", list(_maps())),
            ("Over all layers", list(_spreads())),
            ("Experts and attention", list(_parts())),
        ],
        jobs="one",
    )


def _parts() -> Iterator[Panel]:
    experts, attention = ExpertCollapseConfig(), AttentionLogitsConfig()
    for name, rule, steps in (
        ("router_entropy_ratio", "expert_collapse", ((experts.entropy, FINE),)),
        ("router_dead_experts_ratio", "expert_collapse", ((experts.dead_share, WARNED),)),
        ("attention_logit", "attention_logits", ((attention.limit, WARNED),)),
    ):
        worst = Curve(gauge(f"caboose_worst_layer_{name}", "layer"), "{{layer}}")
        all_of_them = [
            Curve(gauge(f"caboose_layer_{name}", where=(f'stat="{stat}"',)), stat) for stat in ("median", "max", "min")
        ]
        is_share = name != "attention_logit"
        for what, drawn in (("ten worst modules", [worst]), ("over all modules", all_of_them)):
            yield curves(
                f"{PART_TITLES[name]}, {what}",
                *drawn,
                unit="percentunit" if is_share else "short",
                log=0 if is_share else 10,
                steps=steps,
                rules=(rule,),
                size=(12, 8),
                is_open_ended=len(drawn) == 1,
                least=0 if is_share else None,
                most=1 if is_share else None,
            )


def _worst() -> Iterator[Panel]:
    for name in ("dead_units_ratio", "saturated_units_ratio", "update_ratio"):
        expression = gauge(f"caboose_layer_{name}", where=('stat="max"',))
        unit = "percentunit" if name in SHARES else "sci"
        yield number(
            f"{TITLES[name]}, worst layer",
            expression,
            unit=unit,
            steps=STEPS[name],
            base=BASES.get(name, FINE),
            size=(4, 4),
        )
    yield number("Unmeasured layers", gauge("caboose_layers_unseen"), unit="none", steps=((1, WARNED),), size=(4, 4))
    for stat, what, bound in (("gradient", "gradients", 100), ("sample", "samples", 1000)):
        yield number(
            f"Age of {what}",
            gauge("caboose_layer_age_steps", where=(f'stat="{stat}"',)),
            unit="none",
            steps=((bound, NOTED),),
            size=(4, 4),
            about="Steps since the values below were last measured. They hold their last value in between.",
        )


def _offenders() -> Iterator[Panel]:
    of_parameters = tuple(name for name in TITLES if name not in OF_ACTIVATIONS)
    for what, names in (("parameters", of_parameters), ("activations", OF_ACTIVATIONS)):
        columns = {"layer": Column("layer")}
        for name in names:
            unit = "percentunit" if name in SHARES else "sci"
            expression = gauge(f"caboose_worst_layer_{name}", "layer")
            base = BASES.get(name, FINE)
            columns[name] = Column(TITLES[name].lower(), expression, unit, STEPS.get(name, ()), base)
        yield table(
            f"Worst layers: {what}",
            columns,
            about="The ten worst layers of each statistic; coloured cells need attention. An empty cell means that"
            " the layer is not among the ten worst.",
            size=(12, 9),
            sort=names[0],
        )
    for name in ("gradient_norm", *SHARES):
        yield curves(
            f"{TITLES[name]}, ten worst layers",
            Curve(gauge(f"caboose_worst_layer_{name}", "layer"), "{{layer}}"),
            unit="percentunit" if name in SHARES else "short",
            log=0 if name in SHARES else 10,
            steps=STEPS.get(name, ()),
            rules=RULES[name],
            size=(8, 9),
            is_open_ended=True,
            least=0 if name in SHARES else None,
            most=1 if name in SHARES else None,
        )


def _maps() -> Iterator[Panel]:
    for name, title in TITLES.items():
        expression = gauge(f"caboose_depth_{name}", "depth")
        if name in SHARES:
            yield heat(f"{title} by depth", expression, unit="percentunit", rules=RULES[name], least=0, most=1)
        else:
            about = (
                "Base-10 logarithm of the median at each depth: -3 means 0.001. A smooth change over depth is normal;"
                " a value of 0 is shown at the bottom of the scale."
            )
            logarithm = f"log10(clamp_min({expression}, {SMALLEST}))"
            yield heat(f"{title} by depth (log10)", logarithm, unit="short", about=about, rules=RULES[name])


def _spreads() -> Iterator[Panel]:
    for name, title in TITLES.items():
        is_share = name in SHARES
        yield curves(
            f"{title} over all layers",
            *(
                Curve(gauge(f"caboose_layer_{name}", where=(f'stat="{stat}"',)), stat)
                for stat in ("median", "max", "min")
            ),
            unit="percentunit" if is_share else "sci",
            log=0 if is_share else 10,
            steps=STEPS.get(name, ()),
            rules=RULES[name],
            size=(8, 8),
            least=0 if is_share else None,
            most=1 if is_share else None,
        )
