"""`caboose doctor`: checks from the agents to the alerts, each with its fix."""
