"""Small real training jobs with known faults, run by `caboose demo`. They need torch; the daemon starts them."""
