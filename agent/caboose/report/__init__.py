"""What is sent to the daemon: records, Hello, the sender thread, the step count, who this rank is."""
