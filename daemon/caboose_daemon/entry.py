"""The `caboose` command's first step: hands over to the command line, or says how to install what it needs."""

import sys

NEEDED = (
    "click",
    "grafana_client",
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
            f"caboose: the command line needs {error.name}, which only the daemon's extra installs:\n"
            "    pip install 'caboose[daemon]'\n"
        )
        raise SystemExit(2) from None
