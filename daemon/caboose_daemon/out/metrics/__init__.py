"""The metrics that Prometheus scrapes: `table` defines every metric, `collector` fills them from the state.

Reading order: `table`, `units`, `samples` (values into families), `names` and `slots` (limits on labels),
`collector`, `jobs`, `incidents`, `rollbacks`, `layers`, `ranks`, `daemon`.
"""
