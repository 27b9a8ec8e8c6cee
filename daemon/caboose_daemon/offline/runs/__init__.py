"""A run, wherever it is known from: a running daemon, a journal, or anyone's log."""
