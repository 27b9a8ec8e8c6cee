"""Every metric by name: its type, unit, labels, help, and how to read it.

Design
------
The only place where a metric name is defined: the sections are in `table_of_jobs`, `table_of_layers`,
`table_of_incidents` and `table_of_daemon`. Families and docs are generated from them, alerts and dashboards are checked
against them, and a test compares every scrape with them. `tells` is for people who read dashboards: what is normal and
what is not.

The number of series per job has a constant limit, whatever the number of ranks and layers: see `ranks` and `layers`.
"""

from caboose_daemon.out.metrics.table_of_daemon import DAEMON
from caboose_daemon.out.metrics.table_of_incidents import FINDINGS, ROLLBACK
from caboose_daemon.out.metrics.table_of_jobs import CURVES, JOBS, SIGHT, SPEED
from caboose_daemon.out.metrics.table_of_layers import LAYERS, RANKS

SECTIONS = (JOBS, CURVES, FINDINGS, ROLLBACK, LAYERS, RANKS, SPEED, SIGHT, DAEMON)
ENTRIES = {entry.name: entry for section in SECTIONS for entry in section.entries}
