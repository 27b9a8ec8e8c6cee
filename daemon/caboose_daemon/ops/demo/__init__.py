"""`caboose demo`: a daemon, a two-rank run with a fault, and the terminal output."""
