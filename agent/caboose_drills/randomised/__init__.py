"""Diseases drawn at random: every disease over architectures, optimizers, loops, sizes, seeds and onsets.

`diseases` lists them with their true causes, `draw` draws the runs (both without torch). `plan` is a run that a disease
may change; `tasks`, `models`, `optimizers` build it, `faults` changes it, `train`, `trainers` and `adversarial` run it.
`python -m caboose_drills.randomised FILE` trains the draws of a file; `bench/randomised.py` runs and scores all.
"""
