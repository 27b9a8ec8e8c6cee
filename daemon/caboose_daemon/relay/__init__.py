"""`caboose relay`: collects the messages of the ranks of a node, or of other relays, and sends them on as bundles."""
