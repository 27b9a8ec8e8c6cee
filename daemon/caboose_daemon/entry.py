"""Entry point of `caboose`: runs the command line, or prints how to install a missing dependency."""

import sys

NEEDED = (
    "click",
    "markdown_it",
    "plotly",
    "prometheus_client",
    "rich",
    "starlette",
    "uvicorn",
)


def main() -> None:
    """Entry point of the `caboose` script."""
    try:
        from caboose_daemon.cli import caboose

        caboose()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write(
            f"caboose: {error.name} is missing; install the daemon's extra:\n    pip install 'caboose[daemon]'\n"
        )
        raise SystemExit(2) from None
