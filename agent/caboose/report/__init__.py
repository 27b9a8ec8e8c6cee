"""Reports to the daemon: records, the session and its Hello, the sender thread, the step count, the identity."""
