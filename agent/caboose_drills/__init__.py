"""Small real training jobs with known faults: the drills of `caboose drill`, and the job of `caboose demo`.

They need torch, and the daemon's commands start them as processes of their own. A drill is a file with `train(run)`
and `DRILL`, named after it, and a line in `catalogue`; `drill` says what a drill tells about itself, `run` what
`train` is given, and `data`, `nets` and `loop` hold what most drills have in common.
"""
