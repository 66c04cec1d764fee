"""The HTTP/1.1 server: sockets, connections, limits and time-outs."""
