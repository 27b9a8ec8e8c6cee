"""What a daemon or a journal has recorded of a job, read in one way."""
