"""Where the files are that the daemon's commands hand to others: Grafana's dashboards, Prometheus' rules, runbooks.

They lie in `dashboards/` of a checkout; a wheel carries them inside the package (see hatch_build.py).
"""

from pathlib import Path

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parents[1]


def folder(name: str) -> Path:
    """The folder `dashboards/<name>`, of the checkout this runs from or of the installed wheel."""
    if (CHECKOUT / "pyproject.toml").exists() and (CHECKOUT / "dashboards").is_dir():
        return CHECKOUT / "dashboards" / name
    return PACKAGE / "assets" / name


def dashboards() -> list[Path]:
    """Grafana's dashboards, as JSON files."""
    return sorted(folder("grafana").glob("*.json"))


def alerts() -> list[Path]:
    """Prometheus' alerting and recording rules."""
    return sorted(folder("alerts").glob("*.yml"))
