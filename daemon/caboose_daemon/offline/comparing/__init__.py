"""`caboose compare`: runs side by side, and what their differences are evidence for.

Reading order: `measures` (each run in numbers), `settings` (what differs), `evidence` (what follows from it, and what
does not), `descent` (validation against size), `comparison` (all of it together).
"""
