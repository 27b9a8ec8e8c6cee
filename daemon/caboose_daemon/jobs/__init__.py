"""A job while it is watched: its ranks and attempts, its rules, and the pipeline that takes each step through them."""
