"""`caboose demo`: a daemon, a real two-rank run with a fault in it, and a terminal that shows both."""
