"""Small real training jobs with known faults: the drills of `caboose drill`, and the job of `caboose demo`.

They need torch, and the daemon's commands start them as separate processes. A drill is a file with `train(run)` and
`DRILL`, named after the drill, and a line in `catalogue`. `drill` defines a drill's fields, `run` the argument of
`train`; `data`, `nets` and `loop` are shared by most drills.
"""
