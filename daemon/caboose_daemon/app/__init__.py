"""The running daemon: wiring alone."""
