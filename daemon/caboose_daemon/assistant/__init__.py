"""The Model Context Protocol server: a running daemon's answers for an assistant, small, typed and bounded.

Only `server`, `tools` and `transport` import the SDK. The answers are plain functions over a `Reader`, typed as
dictionaries, from which the SDK makes the schemas that a client sees.
"""
