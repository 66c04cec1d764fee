"""The client's protocol without I/O: checked arguments, operations as generators, parsed responses."""
