"""The committed dashboards: up to date, complete, readable, and with queries on existing metrics only."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from caboose_daemon.out.grafana.annotations import of_attempt
from caboose_daemon.out.metrics.table import ENTRIES
from caboose_daemon.rules import RULES
from support.dashboards import FOLDER, Query, chosen, dashboards, filled, panels, queries
from support.processes import clean_environment

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "dashboards" / "runbooks"
ALL = list(queries())
BOARDS = dashboards()
BY_PROMETHEUS = {"instance"}
"""Labels of every scraped series."""
OKABE_ITO = {"#0072B2", "#E69F00", "#009E73", "#F0E442", "#56B4E9", "#D55E00", "#CC79A7", "#999999"}
every_query = pytest.mark.parametrize("query", ALL, ids=str)
every_board = pytest.mark.parametrize("uid", BOARDS)
every_panel = pytest.mark.parametrize(
    "panel", [pytest.param(p, id=f"{uid}: {p['title']}") for uid, board in BOARDS.items() for p in panels(board)]
)


def generate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dashboards.source", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=clean_environment(), cwd=ROOT)


def test_the_files_are_up_to_date() -> None:
    ended = generate("--check")

    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.long
def test_check_names_a_stale_file_without_changing_it_and_a_run_rewrites_it(tmp_path: Path) -> None:
    for path in FOLDER.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    stale = tmp_path / "caboose-run.json"
    stale.write_text(stale.read_text().replace("caboose_loss", "caboose_lost"))
    (tmp_path / "gone.json").write_text("{}")

    ended = generate("--check", "--folder", str(tmp_path))

    assert ended.returncode == 1
    assert "caboose-run.json is out of date; run: make dashboards" in ended.stderr
    assert "gone.json" in ended.stderr
    assert "caboose_lost" in stale.read_text()
    assert generate("--folder", str(tmp_path)).returncode == 0
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {p.name: p.read_text() for p in FOLDER.glob("*.json")}


def test_there_are_six_dashboards() -> None:
    names = ("fleet", "run", "layers", "ranks", "rollbacks", "itself")
    assert set(BOARDS) == {f"caboose-{name}" for name in names}


# Queries


class Names:
    """The metrics and labels of an expression."""

    def __init__(self, expression: str) -> None:
        self.metrics: set[str] = set()
        self.labels: set[str] = set()
        self.matched: list[tuple[str, str]] = []
        self._made: set[str] = set()
        self._visit(promql_parser.parse(expression))

    @property
    def wrong(self) -> list[str]:
        """Metrics and labels that the table does not have."""
        unknown = sorted(self.metrics - ENTRIES.keys())
        known = {label for name in self.metrics & ENTRIES.keys() for label in ENTRIES[name].labels} | BY_PROMETHEUS
        unknown += sorted(self.labels - known)
        for metric, label in self.matched:
            if metric in ENTRIES and label not in {*ENTRIES[metric].labels, *BY_PROMETHEUS}:
                unknown.append(f"{metric}{{{label}}}")
        return unknown

    def _visit(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "MatrixSelector":
            self._visit(node.vector_selector)
        elif kind == "VectorSelector":
            self.metrics.add(node.name)
            self.matched += [(node.name, matcher.name) for matcher in node.matchers.matchers]
        elif kind == "AggregateExpr":
            self.labels |= set(node.modifier.labels if node.modifier else ())
            self._visit(node.expr)
        elif kind == "BinaryExpr":
            if node.modifier and node.modifier.matching:
                self.labels |= set(node.modifier.matching.labels)
            self._visit(node.lhs)
            self._visit(node.rhs)
        elif kind == "Call":
            for argument in node.args:
                self._visit(argument)
        elif kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr"):
            self._visit(node.expr)
        else:
            assert kind in ("NumberLiteral", "StringLiteral"), kind


@every_query
def test_every_query_is_promql_and_names_only_what_the_table_has(query: Query) -> None:
    assert Names(filled(query.expression, chosen("train"))).wrong == []


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("caboose_lost", ["caboose_lost"]),
        ("sum(rate(caboose_lost[5m])) / 2", ["caboose_lost"]),
        ('caboose_loss{rank="1"}', ["caboose_loss{rank}"]),
        ("max by (rank) (caboose_loss)", ["rank"]),
        ("caboose_loss * on (host) group_left () caboose_job_up", ["host"]),
        ('max by (instance) (caboose_loss{stat="mean"})', []),
    ],
)
def test_an_unknown_metric_or_label_is_noticed(expression: str, wrong: list[str]) -> None:
    assert Names(expression).wrong == wrong


def test_an_undefined_variable_is_noticed() -> None:
    with pytest.raises(KeyError, match="jobs"):
        filled('caboose_loss{training_job="$jobs"}', chosen("train"))


def test_every_metric_of_the_table_is_shown_somewhere() -> None:
    shown = {name for query in ALL for name in re.findall(r"\bcaboose_\w+", query.expression)}

    assert sorted(ENTRIES.keys() - shown) == []


@every_board
def test_every_used_variable_is_defined_and_every_defined_one_is_used(uid: str) -> None:
    board = BOARDS[uid]
    defined = {variable["name"] for variable in board["templating"]["list"]}
    parts = [board[part] for part in ("panels", "annotations", "links", "templating")]
    used = set(re.findall(r"\$\{?([A-Za-z]\w*)", json.dumps(parts)))

    assert used == defined


@every_board
def test_a_dashboard_of_one_job_shows_its_posted_annotations(uid: str) -> None:
    posted = [one for one in BOARDS[uid]["annotations"].get("list", []) if "expr" not in one]
    (job,) = [variable for variable in BOARDS[uid]["templating"]["list"] if variable["name"] == "job"]
    assert bool(posted) is not job["multi"]
    for one in posted:
        assert one["enable"] is False, "Prometheus has the incidents, too: each would be marked twice"
        assert one["datasource"] == {"type": "grafana", "uid": "-- Grafana --"}
        assert (one["target"]["type"], one["target"]["matchAny"]) == ("tags", False)
        tags = of_attempt("llama", 2, 0.0).tags
        assert {tag.replace("$job", "llama") for tag in one["target"]["tags"]} <= set(tags)


@every_board
def test_the_jobs_to_choose_from_are_the_scraped_ones(uid: str) -> None:
    (job,) = [variable for variable in BOARDS[uid]["templating"]["list"] if variable["name"] == "job"]

    assert job["query"] == "label_values(caboose_job_up, training_job)"
    assert BOARDS[uid]["templating"]["list"][0]["type"] == "datasource"


# Panels


@every_panel
def test_every_panel_has_a_short_title_a_description_a_unit_and_thresholds(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]

    assert 2 <= len(panel["title"].split()) <= 5
    assert len(panel["description"].split()) >= 8
    assert "caboose_" in panel["description"], "its metrics"
    assert defaults["unit"]
    assert defaults["thresholds"]["steps"][0]["value"] is None
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@every_panel
def test_curves_have_gaps_where_there_is_no_data(panel: dict[str, Any]) -> None:
    if panel["type"] == "timeseries":
        assert panel["fieldConfig"]["defaults"]["custom"]["spanNulls"] is False


@every_board
def test_titles_are_unique_and_panels_do_not_overlap_or_exceed_the_grid(uid: str) -> None:
    board = BOARDS[uid]
    titles = [panel["title"] for panel in panels(board)]
    ids = [panel["id"] for panel in board["panels"]]
    taken: set[tuple[int, int]] = set()

    assert len(set(titles)) == len(titles)
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@every_board
def test_all_colours_are_safe_for_colour_blindness(uid: str) -> None:
    text = json.dumps(BOARDS[uid])

    assert set(re.findall(r"#[0-9A-Fa-f]{6}\b", text)) <= OKABE_ITO
    assert not re.findall(r'"(?:fixedColor|color|iconColor)": "(?!#|transparent)[^"]*"', text)
    assert "palette-classic" not in text


def test_panel_thresholds_equal_those_of_the_rules() -> None:
    (dead,) = [p for p in panels(BOARDS["caboose-layers"]) if p["title"] == "Dead units, ten worst layers"]
    (silence,) = [p for p in panels(BOARDS["caboose-ranks"]) if p["title"] == "Silence by rank"]

    assert [step["value"] for step in dead["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 0.4, 0.6]
    assert [step["value"] for step in silence["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 10.0, 30.0]


# Links


def links(board: dict[str, Any]) -> list[str]:
    return re.findall(r'"url": "([^"]*)"', json.dumps(board["panels"]))


@every_board
def test_the_dashboards_link_to_each_other(uid: str) -> None:
    page, *others = BOARDS[uid]["links"]
    is_of_one = any(v["name"] == "job" and not v.get("multi") for v in BOARDS[uid]["templating"]["list"])

    assert page["url"] == ("${page}/?job=${job:percentencode}" if is_of_one else "${page}/?jobs")
    assert all(link["keepTime"] for link in others)
    if is_of_one:
        assert [(link["type"], link["tags"], link["includeVars"]) for link in others] == [
            ("dashboards", ["caboose"], True)
        ]
    else:  # "All" is no job: a dashboard of one must choose its own
        targets = {link["url"].removeprefix("/d/").partition("?")[0] for link in others}
        assert targets == BOARDS.keys() - {uid}
        assert not any("var-job" in link["url"] or link["includeVars"] for link in others)
    assert "caboose" in BOARDS[uid]["tags"]
    for url in links(BOARDS[uid]):
        if url.startswith("/d/"):
            target, _, variables = url.removeprefix("/d/").partition("?")
            known = {variable["name"] for variable in BOARDS[target]["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", variables)) <= known
        else:
            assert url.startswith("${runbooks}/")


def test_every_runbook_is_linked_from_a_panel() -> None:
    linked = {url for board in BOARDS.values() for url in links(board) if url.startswith("${runbooks}/Caboose")}
    wanted = {"${runbooks}/" + f"{alert(rule.name)}.md" for rule in RULES}

    assert wanted <= linked
    if RUNBOOKS.exists():
        assert {url.removeprefix("${runbooks}/") for url in linked} == {path.name for path in RUNBOOKS.glob("*.md")}


def test_an_incident_opens_the_runbook_of_its_rule() -> None:
    (table,) = [p for p in panels(BOARDS["caboose-run"]) if p["title"] == "Open incidents"]
    (override,) = [o for o in table["fieldConfig"]["overrides"] if o["matcher"]["options"] == "runbook"]
    settings = {setting["id"]: setting["value"] for setting in override["properties"]}
    texts = {rule: result["text"] for rule, result in settings["mappings"][0]["options"].items()}

    assert texts == {rule.name: alert(rule.name) for rule in RULES}
    assert settings["links"][0]["url"] == "${runbooks}/${__value.text}.md"


def alert(rule: str) -> str:
    return "Caboose" + rule.replace("_", " ").title().replace(" ", "")
