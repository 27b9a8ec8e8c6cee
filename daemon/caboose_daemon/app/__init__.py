"""The running daemon: wiring only."""
