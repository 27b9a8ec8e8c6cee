"""From the socket to the job: decoding, admission, and what is refused."""
