"""Writes dashboards/grafana/*.json from the code.

make dashboards                        # or, in the root: python -m dashboards.source
python -m dashboards.source --check    # exit 1 if any file is out of date
"""

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.source import DASHBOARDS
from dashboards.source.board import as_json

FOLDER = Path(__file__).parents[1] / "grafana"


def main() -> int:
    """Writes the files, or lists those that are out of date."""
    parser = argparse.ArgumentParser(description="Writes the Grafana dashboards from the code.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is out of date")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the JSON files (default: %(default)s)")
    given = parser.parse_args()
    made = {}
    for dashboard in DASHBOARDS:
        content = as_json(dashboard())
        made[f"{content['uid']}.json"] = json.dumps(content, cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"
    found = {path.name: path.read_text(encoding="utf-8") for path in given.folder.glob("*.json")}
    stale = sorted(name for name in made.keys() | found.keys() if made.get(name) != found.get(name))
    for name in stale:
        path = given.folder / name
        if given.check:
            sys.stderr.write(f"{path} is out of date; run: make dashboards\n")
        elif name in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[name], encoding="utf-8")
        else:
            path.unlink()
    return int(given.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
