"""How well diseases drawn at random are found and explained: architectures, optimizers, loops, seeds and onsets vary.

    make bench-randomised                         # trains all draws, writes its part of docs/diagnosis.md
    make bench-randomised ARGS=--resume           # continues an interrupted measurement
    make bench-randomised ARGS=--rejudge          # judges the recorded runs again, without training
    python bench/randomised.py --half tune --failures
    python bench/randomised.py --half held --again "again " --results build/again    # other draws than the fixed ones

Half of the draws (`tune`) may be looked at to mend rules; the other half (`held`) is only reported. Runs are recorded,
so a change of the rules is judged in minutes.
"""

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import recording
from randomised_page import page
from randomised_runs import Results, Runs, ending, fingerprint, in_mixed_order, num_slots, with_twins
from randomised_scores import Judged, fitted, judge
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from caboose_drills.randomised.draw import Draw, draws

BEGIN, END = "<!-- measured by `make bench-randomised` -->", "<!-- end of the measurement -->"


def main() -> int:
    """The exit code: 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="draws, or diseases; default: all")
    parser.add_argument("--results", type=Path, default=Path("build/randomised"), help="directory of the results")
    parser.add_argument("--resume", action="store_true", help="train only what is missing")
    parser.add_argument("--rejudge", action="store_true", help="judge the recordings again, without training")
    parser.add_argument("--report", action="store_true", help="only print what is known")
    parser.add_argument("--half", choices=("tune", "held"), help="only draws of this half, and their twins")
    parser.add_argument("--loops", help="only draws in these loops, such as plain,amp")
    parser.add_argument("--limit", type=int, help="only so many draws, in the fixed mixed order")
    parser.add_argument("--again", default="", help="other draws, by any text: what nobody has looked at")
    parser.add_argument("--slots", type=int, default=num_slots(), help="processes that train at the same time")
    parser.add_argument("--failures", action="store_true", help="list the failures of the tune half")
    parser.add_argument("--fit", action="store_true", help="the constants of diagnosis/calibration.py on these runs")
    parser.add_argument("--output", type=Path, help="Markdown page whose measured part is replaced")
    options = parser.parse_args()
    console, results = Console(), Results(options.results)
    chosen = _chosen(options)
    is_whole = not (options.names or options.half or options.loops or options.limit)
    if is_whole and not (options.resume or options.rejudge or options.report):
        results.file.unlink(missing_ok=True)
    known = results.load()
    if options.rejudge:
        known |= _rejudged(chosen, known, results, options.slots)
    elif not options.report:
        _train([draw for draw in chosen if draw.id not in known or not options.resume], results, options.slots, console)
        known = results.load()
    judged = [judge(draw, known[draw.id], known.get(draw.base)) for draw in chosen if draw.id in known]
    text = page(judged, len(draws(options.again)), fingerprint())
    if options.output is not None:
        _replace(options.output, text)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if options.failures:
        _print_failures(judged, console)
    if options.fit:
        at_a_tie, per_lead = fitted(judged)
        console.print(f"AT_A_TIE, PER_LEAD = {at_a_tie:.2f}, {per_lead:.2f}", markup=False)
    return 0


def _chosen(options: argparse.Namespace) -> list[Draw]:
    """What is measured, twins included, in the mixed order."""
    every = draws(options.again)
    some = [draw for draw in every if options.half is None or (draw.disease and draw.half == options.half)]
    if options.loops:
        some = [draw for draw in some if draw.loop in options.loops.split(",")]
    if options.names:
        some = [draw for draw in some if {draw.id, draw.disease, draw.family} & set(options.names)]
        if not some:
            sys.exit(f"no draw or disease named {', '.join(options.names)}")
    mixed = in_mixed_order(some)[: options.limit]
    return in_mixed_order(with_twins(mixed, every))


def _train(wanted: list[Draw], results: Results, slots: int, console: Console) -> None:
    columns = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
    with tempfile.TemporaryDirectory(prefix="caboose-randomised-", ignore_cleanup_errors=True) as name, bar:
        runs = Runs(results, slots, Path(name))
        task = bar.add_task("runs", total=len(wanted))
        with ending(runs), runs:
            runs.run(wanted, lambda _: bar.advance(task))


def _rejudged(
    chosen: list[Draw], known: dict[str, dict[str, Any]], results: Results, slots: int
) -> dict[str, dict[str, Any]]:
    """The results with the findings and incidents that their recordings give now."""
    judged: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(slots) as pool:
        paths = {draw.id: results.recording(draw.id) for draw in chosen if draw.id in known}
        waiting = {name: pool.submit(recording.replay, path) for name, path in paths.items() if path.exists()}
        for name, job in waiting.items():
            findings, incidents = job.result()
            judged[name] = {**known[name], "findings": findings, "incidents": incidents}
    return judged


def _replace(path: Path, text: str) -> None:
    """Puts the text between the marks of a page."""
    before, mark, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end_mark, after = rest.partition(END)
    if not mark or not end_mark:
        sys.exit(f"{path} has no place for the measurement: {BEGIN} ... {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def _print_failures(judged: list[Judged], console: Console) -> None:
    """One line for each run of the tune half that was not found, or not explained, and for each false alarm."""
    for one in judged:
        draw = one.draw
        where = f"{draw.id:24} {draw.family:12} {draw.optimizer:9} {draw.loop:12} s={draw.strength:.2f} at {draw.onset}"
        if draw.half != "tune":
            continue
        if one.error:
            console.print(f"error   {where} {one.error[-300:]}", markup=False, highlight=False, soft_wrap=True)
        elif not draw.disease:
            if one.rules:
                console.print(f"alarm   {where} {' '.join(one.rules)}", markup=False, highlight=False, soft_wrap=True)
        elif not one.is_mild and not (one.is_found and one.is_right and one.num_incidents == 1):
            kind = "missed " if not one.is_found else "cause  " if not one.is_right else "several"
            causes = " ".join(f"{cause}={sure:.2f}" for cause, sure in one.causes)
            told = f"{kind} {where} rules: {' '.join(one.rules)} causes: {causes}"
            console.print(told, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
