"""Writes the generated files in deploy/: caboose.example.toml from the configuration dataclasses, the PrometheusRules
from dashboards/alerts, the ConfigMaps of Grafana's dashboards from dashboards/grafana.

    python deploy/generate.py             # or: make deploy
    python deploy/generate.py --check     # exit 1 if a file is out of date
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from caboose_daemon import assets
from caboose_daemon.ops.config_reference import reference

DEPLOY = Path(__file__).parent


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml ships no types
    """YAML with multi-line texts as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def prometheus_rules() -> str:
    """All alerting and recording rules as resources of the Prometheus operator, one per group.

    `kubectl apply` keeps a copy of an object in an annotation of at most 256 KiB: one of all groups would be refused.
    """
    rules = []
    for path in assets.alerts():
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            name = re.sub(r"[^a-z0-9]+", "-", f"caboose-{group['name'].lower().removeprefix('caboose')}").strip("-")
            resource = {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PrometheusRule",
                "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "caboose"}},
                "spec": {"groups": [group]},
            }
            rules.append(yaml.dump(resource, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True))
    return "# Generated from dashboards/alerts by `make deploy`; do not edit.\n" + "---\n".join(rules)


def dashboard_maps() -> str:
    """Every dashboard as a ConfigMap of its own: one of all would be too large for `kubectl apply`."""
    maps = []
    for path in assets.dashboards():
        labels = {"app.kubernetes.io/name": "caboose", "grafana_dashboard": "1"}
        content = json.dumps(json.loads(path.read_text(encoding="utf-8")), separators=(",", ":"), ensure_ascii=False)
        resource = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": path.stem, "labels": labels},
            "data": {path.name: content},
        }
        maps.append(yaml.dump(resource, Dumper=_Dumper, sort_keys=False, width=10**9, allow_unicode=True))
    return "# Generated from dashboards/grafana by `make deploy`; do not edit.\n" + "---\n".join(maps)


MADE: Mapping[str, Callable[[], str]] = {
    "caboose.example.toml": reference,
    "kubernetes/operator/prometheusrules.yaml": prometheus_rules,
    "kubernetes/dashboards/dashboards.yaml": dashboard_maps,
}


def main() -> int:
    """Writes the files, or lists those that are out of date."""
    parser = argparse.ArgumentParser(description="Writes the generated files of deploy/.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is out of date")
    given = parser.parse_args()
    is_stale = False
    for name, make in MADE.items():
        path, text = DEPLOY / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if given.check:
            is_stale = True
            sys.stderr.write(f"{path} is out of date; run: make deploy\n")
        else:
            path.write_text(text, encoding="utf-8")
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
