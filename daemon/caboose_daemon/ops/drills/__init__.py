"""`caboose drill`: trains models with known faults through agent, wire and daemon, and scores what was found.

`catalogue` lists the drills, `session` runs them under one daemon, `judge` compares the API's answers with the expected
ones, `results` stores them, `scores` and `tables` summarise them.
"""
