"""`caboose report`."""

import os
import sys
import tempfile
from pathlib import Path

import click

from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import daemon_option, example, fail, json_option, load_one_run, print_json, the_job
from caboose_daemon.offline.html_report.document import render
from caboose_daemon.offline.html_report.picture import PictureError, find_browser, take_picture
from caboose_daemon.offline.runs.run import Run


@click.command(
    epilog=example(
        "caboose report llama-7b -o llama-7b.html",
        "caboose report caboose-data/journal.sqlite:llama-7b --png llama-7b.png",
        "caboose report trainer_state.json",
    )
)
@click.argument("job", metavar="JOB|FILE", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write.  [default: JOB.html]")
@click.option("--png", type=click.Path(path_type=Path), help="Also write a screenshot; needs Chromium or Chrome.")
@json_option
@daemon_option
def report(job: str | None, output: Path | None, png: Path | None, as_json: bool, address: str | None) -> None:
    """Write one HTML file about a run, for readers who did not watch it.

    Holds curves, incidents with their diagnosis, rollback decisions, layers, configuration, and what could not be
    observed. It opens offline: everything is inside, including plotly's script (about 5 MB). JOB is a job of the
    daemon, without one its only job, or FILE.sqlite:JOB of a journal; FILE is a log that `caboose replay` reads.

    Exit codes: 0 written, 2 no such job or file, the file cannot be written, or --png without a browser.
    """
    if png is not None:
        try:
            find_browser()
        except PictureError as error:
            fail(f"--png {error}")
    run = load_one_run(the_job(job, address), address)
    target = output or Path(f"{_safe(run.name)}.html")
    _write(target, render(run))
    written = [target]
    if png is not None:
        try:
            take_picture(target, png)
        except PictureError as error:
            fail(f"--png {png}: {error}; {target} is written")
        written.append(png)
    if as_json:
        print_json(_as_object(run, written))
    else:
        for path in written:
            echo(f"{path}  ({path.stat().st_size / 1e6:.1f} MB)")
        echo(_sentence(run), err=not sys.stdout.isatty())


def _write(target: Path, text: str) -> None:
    """Writes the file atomically."""
    try:
        descriptor, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        fail(f"{target}: {error.strerror}; -o names another file")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(aside).chmod(0o644)
        Path(aside).replace(target)
    except OSError as error:
        Path(aside).unlink(missing_ok=True)
        fail(f"{target}: {error.strerror}; -o names another file")
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _safe(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in name).strip(".") or "report"


def _as_object(run: Run, written: list[Path]) -> dict[str, object]:
    files = [{"file": str(path), "bytes": path.stat().st_size} for path in written]
    return {"job": run.name, "source": run.source, "num_incidents": len(run.incidents), "files": files}


def _sentence(run: Run) -> str:
    num = len(run.incidents)
    return f"{run.name}: {run.last_step:,} steps, {num} incident{'' if num == 1 else 's'}, {run.source}"
