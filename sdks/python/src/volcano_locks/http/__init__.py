"""The client's HTTP stack in an event loop: transport, connection pools, responses and event streams."""
