"""`make fuzz`: hypothesis, random bytes and atheris, one after the other, each for a third of the time.

    python -m support.fuzzing --minutes 10 --seed 1 --directory build/fuzz [--engine hypothesis|random|atheris]

Exit codes: 0 nothing failed, 1 something did; the smallest example of each failure is in DIRECTORY/crashers.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from support.fuzzing import machine, random_bytes

ENGINES = ("hypothesis", "random", "atheris")
MAX_BYTES = 200
"""Of an input: enough for its operations."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--engine", choices=ENGINES, action="append")
    given = parser.parse_args()
    directory = given.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    engines = given.engine or [name for name in ENGINES if name != "atheris" or importlib.util.find_spec(name)]
    for name in set(ENGINES) - set(engines):
        print(f"without {name}")
    found = [_run(name, directory, given.minutes / len(engines), given.seed) for name in engines]
    num_examples = sum(counts["examples"] for counts in found)
    num_past_close = sum(counts["past_close"] for counts in found)
    crashers = {path for counts in found for path in counts["crashers"]}
    print(f"{num_examples:,} examples, {num_past_close:,} past step close, {len(crashers)} crashers")
    for path in sorted(crashers):
        print(f"  {path}: {json.loads(Path(path).read_text())['about']}")
    return 1 if crashers else 0


def _run(engine: str, directory: Path, minutes: float, seed: int) -> dict[str, int | list[str]]:
    counts = directory / f"{engine}.json"
    counts.write_text('{"examples": 0, "past_close": 0, "crashers": []}')
    if engine == "hypothesis":
        machine.run(directory, minutes, seed, counts)
    elif engine == "random":
        random_bytes.run(directory, minutes, seed, counts)
    else:
        options = [f"-max_total_time={round(60 * minutes)}", f"-seed={seed}", f"-max_len={MAX_BYTES}", "-verbosity=0"]
        command = [sys.executable, "-m", "support.fuzzing.guided", str(directory), str(counts), *options]
        ended = subprocess.run(command, check=False)
        if ended.returncode:
            raise SystemExit(f"atheris ended with exit code {ended.returncode}")
    found: dict[str, int | list[str]] = json.loads(counts.read_text())
    print(f"{engine}: {found['examples']:,} examples, {found['past_close']:,} past step close", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
