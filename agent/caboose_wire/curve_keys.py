"""The keys of a connection, as the environment of an agent or a relay sets them."""

from collections.abc import Mapping

KEY_LENGTH = 40
"""Characters, in ZeroMQ's text form (z85)."""


def read_keys(env: Mapping[str, str]) -> tuple[str, str] | None:
    """The daemon's public key and the agent's secret key; None without either, ValueError for one or an invalid one."""
    server, agent = env.get("CABOOSE_SERVER_KEY", ""), env.get("CABOOSE_AGENT_KEY", "")
    if server and agent:
        for variable, key in (("CABOOSE_SERVER_KEY", server), ("CABOOSE_AGENT_KEY", agent)):
            if len(key) != KEY_LENGTH:
                raise ValueError(
                    f"{variable} has {len(key)} characters, a key has {KEY_LENGTH}; see `caboose keys new`"
                )
        return server, agent
    if server or agent:
        missing = "CABOOSE_AGENT_KEY" if server else "CABOOSE_SERVER_KEY"
        raise ValueError(f"{missing} is not set though its partner is; `caboose keys new` prints both")
    return None
