"""HTTP/1.1 without I/O: addresses, encoded requests, responses read from bytes, event streams."""
