"""`caboose diagnose JOB --now`: five hypotheses for a flat validation while training creeps down, each tested.

Reading order: `hypothesis` (what a test gives), `window` (what all tests read), one file for each hypothesis,
`examining` (all of them).
"""
