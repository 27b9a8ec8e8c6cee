"""Paths of the files shipped with the daemon: Grafana dashboards, Prometheus rules, runbooks.

In a checkout they are in `dashboards/`; a wheel contains them inside the package (see hatch_build.py).
"""

from pathlib import Path

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parents[1]


def folder(name: str) -> Path:
    """The folder `dashboards/<name>` of the checkout or of the installed wheel."""
    if (CHECKOUT / "pyproject.toml").exists() and (CHECKOUT / "dashboards").is_dir():
        return CHECKOUT / "dashboards" / name
    return PACKAGE / "assets" / name


def dashboards() -> list[Path]:
    """Grafana dashboards (JSON)."""
    return sorted(folder("grafana").glob("*.json"))


def alerts() -> list[Path]:
    """Prometheus alerting and recording rules."""
    return sorted(folder("alerts").glob("*.yml"))
