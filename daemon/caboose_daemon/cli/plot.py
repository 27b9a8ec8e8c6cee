"""`caboose plot`."""

from pathlib import Path

import click

from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import daemon_option, example, fail, json_option, load_runs, print_json
from caboose_daemon.offline.plotting.charts import CHARTS, charts
from caboose_plots import PlotError, check_path, save

MAX_RUNS = 8
"""Colours that can be distinguished."""


@click.command(
    epilog=example(
        "caboose plot trainer_state.json -o curves.png",
        "caboose plot llama-7b --what loss,gradients -o loss.svg",
        "caboose plot run-1.csv run-2.csv -o both.html",
    )
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write: .png, .svg or .html.")
@click.option("--what", default="", metavar="NAME,NAME", help=f"Of {', '.join(CHARTS)}.  [default: all that there are]")
@click.option("--window", type=click.IntRange(min=1), help="Values in the moving average.  [default: 2 %]")
@json_option
@daemon_option
def plot(
    runs: tuple[str, ...], output: Path | None, what: str, window: int | None, as_json: bool, address: str | None
) -> None:
    """Draw the curves of a run, or of several in one chart: loss with its moving average, validation, learning rate,
    loss against learning rate, gradient norm, and the gradient of each layer.

    RUN is a job of the daemon, FILE.sqlite:JOB of a journal, or a log that `caboose replay` reads. PNG and SVG need
    matplotlib, HTML needs plotly and opens offline.

    Exit codes: 0 written, 2 a run cannot be read, the file cannot be written, or there is nothing to draw.
    """
    names = [name.strip() for name in what.split(",") if name.strip()]
    unknown = [name for name in names if name not in CHARTS]
    if unknown:
        fail(f"--what {unknown[0]}: there are {', '.join(CHARTS)}")
    loaded_from = list(runs)
    target = output or Path(f"{Path(loaded_from[0].rpartition(':')[2]).stem or 'run'}.png")
    try:
        check_path(target)
    except PlotError as error:
        fail(str(error))
    loaded = load_runs(loaded_from, address)
    if len(loaded) > MAX_RUNS:
        fail(f"{len(loaded)} runs; at most {MAX_RUNS} can be distinguished in one chart")
    drawn = charts(loaded, names, window)
    if not drawn:
        fail(f"{', '.join(runs)}: nothing to draw{f' for {what}' if what else ''}")
    try:
        save(drawn, target)
    except PlotError as error:
        fail(str(error))
    if as_json:
        print_json({"file": str(target), "charts": [{"title": chart.title, "note": chart.note} for chart in drawn]})
    else:
        echo(f"{target}  ({target.stat().st_size / 1e3:.0f} kB)")
        for chart in drawn:
            echo(f"  {chart.title}{f': {chart.note}' if chart.note else ''}")
