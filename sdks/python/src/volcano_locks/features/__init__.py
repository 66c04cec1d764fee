"""Features built on blocks and event streams: leadership, watching, exclusive functions."""
