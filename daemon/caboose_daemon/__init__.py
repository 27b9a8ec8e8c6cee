"""The daemon: receives every rank's reports, aligns them, judges them, and shows the results."""
