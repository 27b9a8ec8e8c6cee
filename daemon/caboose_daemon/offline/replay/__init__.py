"""`caboose replay`: the rules, run over the log of a run that is over."""
