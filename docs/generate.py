"""Writes the tables of thresholds in docs/rules.md from the rules themselves; the prose around them is left alone.

    make docs                             # or: python docs/generate.py
    python docs/generate.py --check       # exit 1 if anything is not current

A table stands between two comments. Where they are missing, a table written by hand is replaced, or a new one is put
before *What to do*; a rule without a section gets one at the end, with its own sentence to begin from.
"""

import argparse
import re
import sys
from pathlib import Path

from caboose_daemon.rules import RULES
from caboose_daemon.rules.describe import Description, describe

PAGE = Path(__file__).with_name("rules.md")
BEGIN = "<!-- generated from the rule by `make docs` -->"
END = "<!-- end of the generated part -->"
GENERATED = re.compile(re.escape(BEGIN) + r"\n.*?" + re.escape(END) + r"\n", flags=re.DOTALL)
BY_HAND = re.compile(r"^\| *key *\|.*\n(?:\|.*\n)+", flags=re.MULTILINE)
TO_DO = re.compile(r"^\*What to do", flags=re.MULTILINE)


def table(rule: Description) -> str:
    """The generated part of one rule's section."""
    own = [threshold for threshold in rule.thresholds if threshold.is_own]
    lines = [BEGIN, ""]
    if own:
        lines += ["| key | default | meaning |", "|---|---|---|"]
        lines += [f"| `{t.key}` | {toml(t.default)} | {cell(t.doc)} |" for t in own]
    else:
        lines.append("It has no thresholds of its own.")
    facts = [
        ("Needs", rule.needs),
        ("Muted in", rule.muted_in),
        ("Starts over after", rule.forgets_after),
    ]
    said = [f"{title}: {', '.join(f'`{name}`' for name in names)}." for title, names in facts if names]
    if said:
        lines += ["", " ".join(said)]
    return "\n".join([*lines, "", END, ""])


def toml(value: object) -> str:
    """A default as it would stand in caboose.toml."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    return f"{value:g}" if isinstance(value, float) else str(value)


def cell(text: str) -> str:
    """Prose that may stand in a table."""
    return text.replace("|", "\\|").rstrip(".")


def updated(text: str) -> str:
    """The page with every rule's generated part current."""
    for rule in map(describe, RULES):
        heading = f"## {rule.name}\n"
        before, found, after = f"\n{text}".partition(f"\n{heading}")
        if not found:
            text = f"{text.rstrip()}\n\n{heading}\n{rule.sees[:1].upper()}{rule.sees[1:]}\n\n{table(rule)}"
            continue
        section, next_heading, rest = after.partition("\n## ")
        text = f"{before}{found}{placed(section, table(rule))}{next_heading}{rest}"[1:]
    return text


def placed(section: str, made: str) -> str:
    """One section with its generated part in its place."""
    for pattern in (GENERATED, BY_HAND):
        match = pattern.search(section)
        if match is not None:
            return section[: match.start()] + made + section[match.end() :]
    match = TO_DO.search(section)
    if match is not None:
        return f"{section[: match.start()]}{made}\n{section[match.start() :]}"
    return f"{section.rstrip()}\n\n{made}"


def main() -> int:
    """Writes the page, or says that it is not current."""
    parser = argparse.ArgumentParser(description="Writes the tables of thresholds in docs/rules.md.")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if anything is not current")
    given = parser.parse_args()
    text = given.page.read_text(encoding="utf-8")
    new = updated(text)
    if new == text:
        return 0
    if given.check:
        sys.stderr.write(f"{given.page} is not what the rules say; run: make docs\n")
        return 1
    given.page.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
