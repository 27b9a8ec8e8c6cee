"""Finds the likely causes of an incident: how likely each is, what to do first and what not to do.

Reading order: `case` (what is known about an incident), `cause` (what a cause is, and its evidence), `causes/` (one
file each), `weighing` (how they are ranked, and when), `refusals` (advice that is not given, and why). `model_facts`,
`curves` and `hunts` read from a case what several causes need.
"""
