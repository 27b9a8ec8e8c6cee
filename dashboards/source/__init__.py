"""The Grafana dashboards, one file each, in one tuple. `make dashboards` writes their JSON."""

from dashboards.source.fleet import fleet
from dashboards.source.itself import itself
from dashboards.source.layers import layers
from dashboards.source.ranks import ranks
from dashboards.source.rollbacks import rollbacks
from dashboards.source.run import run

DASHBOARDS = (fleet, run, layers, ranks, rollbacks, itself)
