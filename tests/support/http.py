"""One HTTP client for all tests: `httpx.get` makes a TLS context at every call, which takes 50 ms of CPU time."""

import httpx

http = httpx.Client(
    verify=False,  # loopback, without TLS
    trust_env=False,
    timeout=10,
    limits=httpx.Limits(max_keepalive_connections=0),  # a restarted daemon has another connection
)
