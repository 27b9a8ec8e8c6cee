"""The kinds of panels in the shared style: curves, numbers, tables, heat maps over depth, states over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import table as tables
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import heatmap as heatmaps
from grafana_foundation_sdk.models import prometheus as queries

from dashboards.source.look import CURVES, FINE, HEALTH, PLAIN, SOURCE, described, runbooks, thresholds

Panel = timeseries.Panel | stat.Panel | tables.Panel | heatmap.Panel | statetimeline.Panel
AnyPanel = TypeVar("AnyPanel", timeseries.Panel, stat.Panel, tables.Panel, heatmap.Panel, statetimeline.Panel)
Steps = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Curve:
    """One query of a panel, and its legend."""

    expression: str
    legend: str
    is_thin: bool = False
    """Drawn as a thin dashed line: the edge of a band, a peak."""


def _target(expression: str, number: int, legend: str = "") -> prometheus.Dataquery:
    return prometheus.Dataquery().datasource(SOURCE).expr(expression).legend_format(legend).ref_id(chr(65 + number))


def _dressed(
    panel: AnyPanel, title: str, about: str, expressions: Sequence[str], rules: Sequence[str], size: tuple[int, int]
) -> AnyPanel:
    panel.title(title).description(described(about, expressions)).datasource(SOURCE).span(size[0]).height(size[1])
    if rules:
        panel.links(runbooks(*rules))
    return panel


def curves(
    title: str,
    *shown: Curve,
    unit: str,
    about: str = "",
    rules: Sequence[str] = (),
    steps: Steps = (),
    size: tuple[int, int] = (12, 8),
    log: int = 0,
    is_open_ended: bool = False,
    is_high_good: bool = False,
    is_stacked: bool = False,
    is_counted: bool = False,
    least: float | None = None,
    most: float | None = None,
) -> timeseries.Panel:
    """Curves over time. A NaN is a gap and is never bridged.

    `is_open_ended`: one query returns any number of curves, coloured by value: the highest red, or, with
    `is_high_good`, the lowest yellow. `is_counted`: bars, for events.
    """
    panel = _dressed(timeseries.Panel(), title, about, [c.expression for c in shown], rules, size)
    panel.unit(unit).span_nulls(False).line_width(2).fill_opacity(0).show_points(common.VisibilityMode.AUTO)
    panel.point_size(4).thresholds(thresholds(*steps)).axis_grid_show(True)
    panel.tooltip(options.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    legend = options.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
    panel.legend(legend.display_mode(common.LegendDisplayMode.LIST).calcs(["lastNotNull"]))
    if steps:
        panel.thresholds_style(options.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED))
    if log:
        scale = options.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(log)
        panel.scale_distribution(scale)
    if is_stacked:
        panel.stacking(options.StackingConfig().mode(common.StackingMode.NORMAL).group("A")).fill_opacity(40)
    if is_counted:
        panel.draw_style(common.GraphDrawStyle.BARS).fill_opacity(80).line_width(0)
    if least is not None:
        panel.min(least)
    if most is not None:
        panel.max(most)
    if is_open_ended:
        modes = dashboard.FieldColorModeId
        mode = modes.CONTINUOUS_YL_BL if is_high_good else modes.CONTINUOUS_BL_YL_RD
        panel.color_scheme(build.FieldColor().mode(mode).series_by(dashboard.FieldColorSeriesByMode.LAST))
    else:
        panel.color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(CURVES[0]))
    for number, curve in enumerate(shown):
        panel.with_target(_target(curve.expression, number, curve.legend).range())
        if not is_open_ended:
            panel.override_by_query(chr(65 + number), _line(CURVES[number % len(CURVES)], curve.is_thin))
    return panel


def _line(color: str, is_thin: bool) -> list[dashboard.DynamicConfigValue]:
    # One query may return several curves (one per group): they get shades of one colour.
    made = [dashboard.DynamicConfigValue("color", {"mode": "shades", "fixedColor": color})]
    if is_thin:
        made.append(dashboard.DynamicConfigValue("custom.lineWidth", 1))
        made.append(dashboard.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [4, 4]}))
    return made


def named(panel: timeseries.Panel, *names: str) -> timeseries.Panel:
    """Gives each named curve of one query its own colour."""
    for number, name in enumerate(names):
        panel.override_by_name(name, _line(CURVES[number % len(CURVES)], False))
    return panel


def number(
    title: str,
    expression: str,
    *,
    unit: str,
    about: str = "",
    rules: Sequence[str] = (),
    steps: Steps = (),
    base: str = FINE,
    mappings: Sequence[dashboard.ValueMapping] = (),
    legend: str = "",
    size: tuple[int, int] = (4, 4),
    decimals: float | None = None,
    none: str = "no data",
    is_name: bool = False,
) -> stat.Panel:
    """The current value of one number; `is_name` shows the legend instead."""
    panel = _dressed(stat.Panel(), title, about, [expression], rules, size)
    panel.unit(unit).thresholds(thresholds(*steps, base=base)).mappings(list(mappings)).no_value(none)
    panel.color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
    panel.graph_mode(common.BigValueGraphMode.NONE).justify_mode(common.BigValueJustifyMode.AUTO)
    panel.color_mode(common.BigValueColorMode.BACKGROUND if steps or mappings else common.BigValueColorMode.NONE)
    panel.text_mode(common.BigValueTextMode.NAME if is_name else common.BigValueTextMode.VALUE)
    panel.reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    if decimals is not None:
        panel.decimals(decimals)
    return panel.with_target(_target(expression, 0, legend).instant())


@dataclass(frozen=True)
class Column:
    """One column of a table: the value of a query, or a label if there is no query."""

    title: str
    expression: str = ""
    unit: str = "none"
    steps: Steps = ()
    base: str = FINE
    mappings: Sequence[dashboard.ValueMapping] = ()
    link: build.DashboardLink | None = None
    decimals: float | None = None
    width: int = 0


def table(
    title: str,
    columns: Mapping[str, Column],
    *,
    about: str = "",
    rules: Sequence[str] = (),
    size: tuple[int, int] = (24, 9),
    sort: str = "",
    none: str = "no data",
    hidden: Sequence[str] = (),
) -> tables.Panel:
    """Instant queries joined by their common labels.

    The keys of `columns` are label names, or any other word for values. They are shown in this order.
    """
    values = {key: column for key, column in columns.items() if column.expression}
    panel = _dressed(tables.Panel(), title, about, [c.expression for c in values.values()], rules, size)
    panel.unit("none").no_value(none).thresholds(thresholds()).show_header(True)
    panel.color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
    fields = {}
    for place, (key, column) in enumerate(columns.items()):
        name = key
        if column.expression:
            index = list(values).index(key)
            name = f"Value #{chr(65 + index)}" if len(values) > 1 else "Value"
            target = _target(column.expression, index).instant().format(queries.PromQueryFormat.TABLE)
            panel.with_target(target)
        fields[name] = (place, column)
        panel.override_by_name(column.title, _cell(column))
    if len(values) > 1:
        panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    arranged = {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": {name: place for name, (place, _) in fields.items()},
        "renameByName": {name: column.title for name, (_, column) in fields.items()},
    }
    panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=arranged))
    if sort:
        panel.sort_by([options.TableSortByFieldState().display_name(columns[sort].title).desc(True)])
    return panel


def _cell(column: Column) -> list[dashboard.DynamicConfigValue]:
    value = dashboard.DynamicConfigValue
    made = [value("unit", column.unit)]
    if column.steps:
        plain = [(limit, PLAIN if color == FINE else color) for limit, color in column.steps]
        base = PLAIN if column.base == FINE else column.base
        made.append(value("thresholds", thresholds(*plain, base=base).build()))
    if column.mappings:
        made.append(value("mappings", list(column.mappings)))
    if column.steps or (column.mappings and any(_colors(column))):
        made.append(value("custom.cellOptions", {"type": "color-background", "mode": "basic"}))
    if column.link is not None:
        made.append(value("links", [column.link.build()]))
    if column.decimals is not None:
        made.append(value("decimals", column.decimals))
    if column.width:
        made.append(value("custom.width", column.width))
    return made


def _colors(column: Column) -> list[bool]:
    return [
        result.color is not None
        for mapping in column.mappings
        if isinstance(mapping, dashboard.ValueMap)
        for result in mapping.options.values()
    ]


def heat(
    title: str,
    expression: str,
    *,
    unit: str,
    about: str = "",
    rules: Sequence[str] = (),
    legend: str = "{{depth}}",
    size: tuple[int, int] = (12, 9),
    least: float | None = None,
    most: float | None = None,
) -> heatmap.Panel:
    """One row per part of the depth, input at the bottom, output at the top. The colour is the value."""
    panel = _dressed(heatmap.Panel(), title, about, [expression], rules, size)
    colors = heatmap.HeatmapColorOptions().mode(heatmaps.HeatmapColorMode.SCHEME).scheme("Cividis").steps(64)
    colors.exponent(0.5).fill(CURVES[0]).reverse(False)
    if least is not None:
        colors.min(least)
    if most is not None:
        colors.max(most)
    panel.calculate(False).color(colors).cell_gap(0).show_legend().show_tooltip().hide_y_histogram().exemplars_color(
        CURVES[0]
    )
    panel.cell_values(heatmap.CellValues().unit(unit)).unit(unit).thresholds(thresholds())
    panel.y_axis(heatmap.YAxisConfig().axis_label("input → output").unit("none"))
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(common.HeatmapCellLayout.AUTO).value("value"))
    panel.filter_values(heatmap.FilterValueRange().le(-1e300))  # hides nothing, also not zeros
    return panel.with_target(_target(expression, 0, legend).range())


def states(
    title: str,
    expression: str,
    *,
    legend: str,
    about: str = "",
    rules: Sequence[str] = (),
    size: tuple[int, int] = (24, 8),
    mappings: Sequence[dashboard.ValueMapping] = HEALTH,
) -> statetimeline.Panel:
    """One bar per rule or job: its severity over time, in words."""
    panel = _dressed(statetimeline.Panel(), title, about, [expression], rules, size)
    panel.mappings(list(mappings)).unit("none").thresholds(thresholds()).merge_values(True).row_height(0.8)
    panel.color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS)).fill_opacity(90).line_width(0)
    panel.show_value(common.VisibilityMode.AUTO).no_value("nothing open")
    panel.legend(options.VizLegendOptions().show_legend(False).display_mode(common.LegendDisplayMode.HIDDEN))
    return panel.with_target(_target(expression, 0, legend).range())
