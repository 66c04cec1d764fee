"""The HTTP API: turns requests into commands and outcomes into responses."""
