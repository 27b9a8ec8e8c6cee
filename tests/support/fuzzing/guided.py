"""The examples that atheris makes: it learns from coverage of the product which bytes lead to new places.

    python -m support.fuzzing.guided DIRECTORY COUNTS [options of libFuzzer]

Failures are kept in DIRECTORY/crashers and do not end the run; inputs that led to new places are kept in
DIRECTORY/atheris, and the next run begins with them.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["caboose_daemon", "caboose_wire"]):
    from support.fuzzing.random_bytes import WRITE_EVERY, play
    from support.fuzzing.tally import Tally


def main() -> None:
    """Runs until libFuzzer ends it."""
    directory, counts = Path(sys.argv[1]), Path(sys.argv[2])
    tally = Tally(directory / "crashers")
    inputs = directory / "atheris"
    inputs.mkdir(parents=True, exist_ok=True)

    def one_input(content: bytes) -> None:
        play(content, tally)
        if tally.num_examples % WRITE_EVERY == 0:
            tally.write(counts)

    atheris.Setup([sys.argv[0], str(inputs), *sys.argv[3:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
