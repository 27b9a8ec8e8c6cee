"""What Prometheus scrapes: `table` names every metric and what it tells, `collector` fills it from the state.

Reading order: `table`, `units`, `samples` (how values get into families), `names` and `slots` (what bounds them),
`collector`, `jobs`, `incidents`, `rollbacks`, `layers`, `ranks`, `daemon`.
"""
