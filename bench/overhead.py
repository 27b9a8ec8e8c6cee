"""The overhead of Caboose per training step, compared with no monitoring and with common ways to monitor gradients.

    python bench/overhead.py                        all models and variants (about half an hour)
    python bench/overhead.py --quick                transformer (Caboose and the floor) and tiny (some minutes)
    python bench/overhead.py --models tiny          steps of 2 ms only, timed directly
    python bench/overhead.py --world 1,2,4          the agent's own time per rank, and bytes, under DDP
    python bench/overhead.py --check                exit code 1 if a goal for the transformer is missed

Design
------
One process and one torch thread: the second core is left to the agent's sender, the daemon and other libraries'
services, as a training host has cores to spare. `models` has the steps, `peers` the variants, `timing` and `counting`
measure, `tables` writes, `worlds` runs the DDP jobs. The daemon is a real one in a separate process, so that the
sender really sends; at the end its counters show whether all reports arrived. `tiny` times steps of 2 ms directly.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import compiling
import tiny
import torch
import worlds  # makes tests/ importable
from counting import count
from models import MODELS, SHORT, build
from peers import DEFAULTS, QUICK, settled_governor, variants
from tables import NOTES, Result, goals, machine, table, verdict
from timing import compare, step_seconds

from caboose.settings.environment import SAMPLE_EVERY
from support.processes import DaemonProcess, clean_environment, running_daemon

BLOCK_SECONDS = 2.0
"""Long enough for a block to contain the sender's turns, 50 ms apart, in proportion."""
WORLD_PERIODS = 1
"""Sampling periods per rank; with more ranks than cores, a step takes 0.5 s."""
JUDGED = "transformer"
LONGEST_PERIOD = 200
"""Steps of a block between two samples, at most. Where the governor samples less often, samples weigh too much."""
OTHERS_SHARE = 3
"""The other models are compared in a third of the rounds: their stretched sampling periods make long blocks."""


def arguments() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join([*MODELS, *SHORT]), help="some of: %(default)s")
    parser.add_argument("--variants", default="", help="only these, by key; all by default")
    parser.add_argument(
        "--pairs",
        type=int,
        default=30,
        help="rounds of comparison for the transformer, a third of it for the others (default: %(default)s)",
    )
    parser.add_argument(
        "--block", type=int, default=0, help="steps per block, made up to whole periods; by default what takes 2 s"
    )
    parser.add_argument("--output", type=Path, help="write the Markdown there as well")
    parser.add_argument("--quick", action="store_true", help="some minutes: fewer variants and pairs")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a goal is missed")
    parser.add_argument(
        "--compiled",
        default="aot_eager",
        help="the backend of the compiled transformer, e.g. inductor; none: leave it out (default: %(default)s)",
    )
    parser.add_argument("--world", default="", help="only the cost per rank at these world sizes, e.g. 1,2,4")
    options = parser.parse_args()
    options.models = [JUDGED, *SHORT] if options.quick else options.models.split(",")
    options.variants = options.variants.split(",") if options.variants else list(QUICK) if options.quick else []
    options.pairs = min(options.pairs, 3) if options.quick else options.pairs
    unknown = set(options.models) - set(MODELS) - set(SHORT)
    if unknown or options.pairs < 1:
        parser.error(f"no such model: {', '.join(unknown)}" if unknown else "--pairs: give at least 1")
    if options.world and not all(size.isdecimal() and int(size) for size in options.world.split(",")):
        parser.error(f"--world {options.world}: give world sizes, such as 1,2,4")
    options.world = [int(size) for size in options.world.split(",")] if options.world else []
    return options


def progress(text: str) -> None:
    """Rewrites one line on stderr; stdout has only the tables."""
    print(f"\r\033[K{text}" if sys.stderr.isatty() else text, end="" if sys.stderr.isatty() else "\n", file=sys.stderr)
    sys.stderr.flush()


def measure(name: str, options: argparse.Namespace, daemon: DaemonProcess) -> Result:
    """Everything about one model."""
    twins = build(name), build(name)
    rounds = options.pairs if name == JUDGED else -(-options.pairs // OTHERS_SHARE)
    chosen = variants(daemon.endpoint, daemon.process.pid)
    if options.variants:
        chosen = [variant for variant in chosen if variant.key in options.variants]
    progress(f"{name}: warming up")
    seconds = max(map(step_seconds, twins))
    block = options.block or max(20, round(BLOCK_SECONDS / seconds))
    progress(f"{name}: letting the agent's governor settle")
    governor = settled_governor(daemon.endpoint, twins[0])
    period = min(governor.sample_every, LONGEST_PERIOD)
    chosen = [replace(v, period=period) if v.key == DEFAULTS else v for v in chosen]
    counts = {}
    for variant in chosen:
        progress(f"{name}: counting {variant.key}")
        counts[variant.key] = count(twins[0], variant)
    pairs = compare(twins, chosen, rounds=rounds, block=block, progress=progress)
    return Result(twins[0], chosen, pairs, counts, block)


def compiled_section(options: argparse.Namespace, daemon: DaemonProcess) -> list[str]:
    """The transformer under torch.compile, where it is asked for."""
    if options.compiled == "none" or JUDGED not in options.models:
        return []
    rounds = 1 if options.quick else -(-options.pairs // OTHERS_SHARE)
    text = compiling.section(
        daemon.endpoint,
        daemon.process.pid,
        rounds=rounds,
        has_noise=not options.quick,
        block_seconds=BLOCK_SECONDS,
        backend=options.compiled,
        progress=progress,
    )
    return [text, ""]


def _short(options: argparse.Namespace, daemon: DaemonProcess) -> tiny.Measured | None:
    if "tiny" not in options.models:
        return None
    return tiny.measure(daemon.endpoint, num_blocks=1 if options.quick else 8, progress=progress)


def reports(daemon: DaemonProcess) -> str:
    """The daemon's counters, as proof that the sender really sent."""
    wanted = ("caboose_messages_received_total", "caboose_messages_refused_total", "caboose_reports_dropped_total")
    totals = dict.fromkeys(wanted, 0.0)
    for line in daemon.text("/metrics").splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in totals and not (name == wanted[0] and "StepReport" not in line and "step_report" not in line):
            totals[name] += float(line.rsplit(" ", 1)[1])
    received, refused, dropped = (int(total) for total in totals.values())
    return f"The daemon received {received} step reports; it refused {refused} messages, and agents dropped {dropped}."


@contextlib.contextmanager
def quiet_environment() -> Iterator[None]:
    """Removes environment variables that configure the agent or the daemon."""
    kept = dict(os.environ)
    for name in set(os.environ) - set(clean_environment()):
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


def main() -> int:
    """Prints the tables; 1 if --check and a goal is missed."""
    options = arguments()
    torch.set_num_threads(1)
    sections = ["# What a step costs", "", machine() + ".", ""]
    is_good = True
    with quiet_environment(), tempfile.TemporaryDirectory(prefix="bench-overhead-") as directory:
        if options.world:
            sections += [worlds.run(options.world, WORLD_PERIODS * SAMPLE_EVERY, progress)]
        else:
            with running_daemon(Path(directory)) as daemon:
                results = [measure(name, options, daemon) for name in options.models if name in MODELS]
                under_compile = compiled_section(options, daemon)
                short = _short(options, daemon)
                sent = reports(daemon)
            for result in results:
                sections += [table(result), ""]
            if short is not None:
                sections += [tiny.section(short), ""]
                is_good = short.is_met
            sections += [*under_compile, NOTES, "", sent]
            for result in results:
                if result.workload.name == JUDGED and "defaults" in result.counts:
                    sections += ["", verdict(result)]
                    is_good &= all(goal.is_met for goal in goals(result))
    progress("")
    text = "\n".join(sections) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return 1 if options.check and not is_good else 0


if __name__ == "__main__":
    sys.exit(main())
