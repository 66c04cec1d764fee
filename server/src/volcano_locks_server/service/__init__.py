"""The lock service: rate limit, command, group commit, outcome."""
