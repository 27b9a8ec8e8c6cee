"""`caboose drill`: trains models with known diseases through agent, wire and daemon, and judges what was said of them.

`catalogue` asks what drills there are, `session` runs them under one daemon, `judge` compares what the API tells with
what should have been said, `results` keeps it over calls, `scores` and `tables` sum it up.
"""
