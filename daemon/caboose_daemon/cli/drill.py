"""`caboose drill`."""

import importlib.util
import sys
from dataclasses import asdict
from pathlib import Path

import click
import msgspec
from rich.console import Console

from caboose_daemon.cli.console import SafeConsole
from caboose_daemon.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, example, fail, json_option, print_json
from caboose_daemon.ops.drills import catalogue, scores, tables, through
from caboose_daemon.ops.drills.conduct import conduct
from caboose_daemon.ops.drills.results import Result
from caboose_daemon.ops.processes import ProcessError
from caboose_daemon.ops.stack import stack as stacks

WAITS = {
    "daemon": "waiting for the daemon's incident",
    "prometheus": "waiting for Prometheus to scrape it",
    "alert": "waiting for its alert to fire",
    "alertmanager": "waiting for Alertmanager to receive it",
    "resolved": "waiting for it to resolve, about 8 minutes (--no-resolve skips this)",
}


@click.command(
    epilog=example(
        "caboose drill --list",
        "caboose drill dead_units --seeds 3",
        "caboose drill all healthy --json",
        "caboose drill non_finite --through-alerts caboose-stack",
    )
)
@click.argument("names", nargs=-1, metavar="[NAME|all|healthy]...")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs of each drill.")
@json_option
@click.option("--list", "lists", is_flag=True, help="List the drills, and run none.")
@click.option(
    "--through-alerts",
    metavar="DIR|FILE",
    type=click.Path(path_type=Path),
    help="Follow one drill to Alertmanager: the --dir of `caboose stack up`, or a JSON file with the addresses.",
)
@click.option(
    "--patience",
    type=click.FloatRange(5, 3600),
    default=180.0,
    show_default=True,
    help="With --through-alerts: seconds to wait for the alert.",
)
@click.option(
    "--resolve/--no-resolve",
    "resolves",
    default=True,
    help="With --through-alerts: wait until the alert has resolved.",
)
def drill(
    names: tuple[str, ...],
    seeds: int,
    as_json: bool,
    lists: bool,
    through_alerts: Path | None,
    patience: float,
    resolves: bool,
) -> None:
    """Train small models with known faults, and check what Caboose finds.

    Starts a daemon on free ports of this machine, trains each drill for real, and checks that its rule fires, that no
    unexpected rule does, that the rank or layer of origin is named, and which place the true cause takes in the
    diagnosis. `all` is every drill, `healthy` the runs without a fault. All processes are ended and all files removed
    at the end.

    With --through-alerts the drill reports to the daemon of that stack, and its incident is followed to Alertmanager,
    which must hold exactly one alert for it, with its rule and severity, and resolve it some minutes after the drill
    has ended. The time of each hop and the receivers are printed. For a stack of your own, name a JSON file:
    {"endpoint": "tcp://...", "daemon": "http://...", "prometheus": "http://...", "alertmanager": "http://...",
    "token_file": "..."}; the token is for acknowledging what the drill ended with.

    Exit codes: 0 every drill was found, as one incident, in at least 4 of 5 seeds and no healthy run had a critical
    finding, 1 one was not, or failed, 2 cannot run as asked, 130 interrupted.
    """
    if importlib.util.find_spec("torch") is None:
        fail("drills train real models and need torch: pip install torch")
    if not names and not lists:
        fail("which drill? `caboose drill --list` lists them; `all` runs every one")
    console = SafeConsole(stderr=as_json)
    try:
        known = catalogue.read()
        chosen = known.named(names or ("all", "healthy"))
        if lists:
            _list(console, known, chosen, as_json)
            return
        if through_alerts is not None:
            sys.exit(_through(console, chosen, through_alerts, patience, resolves, as_json))
        done = []
        for result in conduct(chosen, lambda _: seeds, console):
            done.append(result)
            _print_result(console, result)
    except ValueError as error:
        fail(str(error))
    except ProcessError as error:
        console.print(f"caboose: {error}", style="red", markup=False)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        console.print("\nInterrupted; all processes are ended.", style="dim")
        sys.exit(EXIT_INTERRUPTED)
    if as_json:
        goals = [{"text": goal.text, "is_met": goal.is_met} for goal in scores.goals(done)]
        print_json({"results": msgspec.to_builtins(done), "goals": goals})
    else:
        console.print(tables.terminal(done))
    sys.exit(EXIT_OK if all(scores.is_passed(result) for result in done) else EXIT_FAILED)


def _through(
    console: Console, chosen: list[catalogue.Drill], where: Path, patience: float, resolves: bool, as_json: bool
) -> int:
    """Follows one drill through a stack; returns the exit code."""
    if len(chosen) != 1 or chosen[0].is_healthy:
        fail("--through-alerts takes one drill, with a fault")
    try:
        with console.status(f"starting {chosen[0].name}") as status:
            passage = through.send(
                chosen[0],
                _stations(where),
                patience=patience,
                resolves=resolves,
                on_station=lambda name: status.update(WAITS[name]),
            )
    except through.ThroughError as error:
        fail(str(error))
    if as_json:
        print_json(asdict(passage))
    else:
        before = 0.0
        for station, seconds in passage.seconds.items():
            verb = "after" if station == through.RESOLVED else "had it after"
            console.print(f"{station:13} {verb:>12} {seconds:6.1f} s  (+ {seconds - before:.1f} s)", highlight=False)
            before = seconds
        if passage.alert:
            name, severity = passage.alert.get("alertname"), passage.alert.get("severity")
            console.print(f"{name} ({severity}) for {passage.job}, to: {', '.join(passage.receivers) or 'no receiver'}")
    for problem in (passage.missing, *passage.wrong):
        if problem:
            console.print(f"caboose: {problem}", style="red", markup=False)
    return EXIT_FAILED if passage.missing or passage.wrong else EXIT_OK


def _stations(where: Path) -> through.Stations:
    try:
        if where.is_dir():
            known = stacks.load(where.resolve())
            if known is None:
                fail(f"no stack was started in {where}; `caboose stack up` starts one")
            if not known.endpoint:
                fail(f"the stack in {where} has no daemon; give the addresses in a JSON file")
            urls = {part.name: part.url for part in known.parts}
            token = str(known.directory / "data" / "token")
            return through.Stations(known.endpoint, known.daemon_url, urls["prometheus"], urls["alertmanager"], token)
        return msgspec.json.decode(where.read_bytes(), type=through.Stations)
    except (OSError, msgspec.MsgspecError, stacks.StackError) as error:
        fail(f"{where}: {error}")


def _list(console: Console, known: catalogue.Catalogue, chosen: list[catalogue.Drill], as_json: bool) -> None:
    if as_json:
        print_json({"drills": msgspec.to_builtins(chosen)})
    else:
        names = {item.name for item in chosen}
        some = [tuple(item for item in part if item.name in names) for part in (known.drills, known.healthy)]
        console.print(tables.catalogue_table(catalogue.Catalogue(*some)))


def _print_result(console: Console, result: Result) -> None:
    """The result of each seed."""
    for outcome in result.outcomes:
        if outcome.error:
            line = f"failed: {outcome.error}"
        elif result.drill.is_healthy:
            line = "healthy" if not outcome.wrong else ""
        else:
            line = (
                f"step {outcome.told_step}: {outcome.summary}" if outcome.found else f"{result.drill.rule} did not fire"
            )
        if not outcome.is_one:
            line += f"; {outcome.num_incidents} incidents instead of 1"
        if outcome.wrong:
            line += "; wrong: " + ", ".join(f"{name} ({severity})" for name, severity in outcome.wrong.items())
        console.print(
            f"{result.name} {outcome.seed}: {line.removeprefix('; ')}", markup=False, highlight=False, soft_wrap=True
        )
