"""Runs with nothing wrong, beside which every drill is judged; at most eight, shared by all."""
