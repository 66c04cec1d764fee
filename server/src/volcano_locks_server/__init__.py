"""The lock service: pure lease rules, stores that keep records, and an HTTP API."""
