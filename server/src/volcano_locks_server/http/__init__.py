"""The HTTP door: what comes in over the wire becomes a command, what came of it becomes an answer."""
