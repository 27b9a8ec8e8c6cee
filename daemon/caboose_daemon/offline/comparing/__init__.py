"""`caboose compare`: runs side by side, and the evidence in their differences.

Reading order: `measures` (each run in numbers), `settings` (differences), `evidence` (conclusions), `descent`
(validation against model size), `comparison` (all together).
"""
