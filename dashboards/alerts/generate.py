"""Writes training.yml and its promtool tests from the catalogue, and the inhibitions into both Alertmanager files.

    make docs                                        # or: python dashboards/alerts/generate.py
    python dashboards/alerts/generate.py --check     # exit 1 if a file is out of date

The other files here (alerts on Caboose itself, alerts on rollback, recording rules) have no repetition and are edited
directly.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import yaml
from cases import training_cases
from incident_alerts import training

from caboose_daemon.ops.stack.inhibitions import INHIBITIONS

HERE = Path(__file__).parent
HEAD = "# Written by `make docs` from daemon/caboose_daemon/incidents/alert_catalogue.py; do not edit.\n"
FILES = {"training.yml": training, "tests/training.yml": training_cases}


ALERTMANAGERS = (
    HERE.parent / "alertmanager" / "alertmanager.yml",
    HERE.parents[1] / "deploy" / "alertmanager" / "alertmanager.yml",
)
BLOCK = re.compile(r"(?<=^inhibit_rules:\n).*?(?=^receivers:)", re.DOTALL | re.MULTILINE)


class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # it ships no types
    """Readable YAML: multi-line texts as blocks, no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, _text)


def written(content: Mapping[str, object]) -> str:
    return HEAD + str(yaml.dump(content, Dumper=Dumper, sort_keys=False, width=10_000, allow_unicode=True))


def inhibited(text: str) -> str:
    """An Alertmanager configuration with its inhibition rules replaced; the rest is unchanged."""
    lines = ["# Written by `make docs` from daemon/caboose_daemon/ops/stack/inhibitions.py; do not edit."]
    for one in INHIBITIONS:
        lines += [f"# {line}" for line in textwrap.wrap(one.why, 116)]
        for start, (key, values) in zip(("- ", "  ", "  "), one.config().items(), strict=False):
            listed = ", ".join(values if key == "equal" else (f"'{value}'" for value in values))
            lines.append(f"{start}{key}: [{listed}]")
    block = "\n".join(lines) + "\n\n"
    made, num = BLOCK.subn(lambda _: block, text)
    assert num == 1, "the file has exactly one inhibit_rules block, before its receivers"
    return made


def main() -> int:
    """Writes the files, or lists those that are out of date."""
    parser = argparse.ArgumentParser(description="Writes the generated alerts and their tests.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is out of date")
    given = parser.parse_args()
    is_stale = False
    made = {HERE / name: written(make()) for name, make in FILES.items()}
    made |= {path: inhibited(path.read_text(encoding="utf-8")) for path in ALERTMANAGERS}
    for path, text in made.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if given.check:
            is_stale = True
            sys.stderr.write(f"{path} is out of date; run: make docs\n")
        else:
            path.write_text(text, encoding="utf-8")
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
