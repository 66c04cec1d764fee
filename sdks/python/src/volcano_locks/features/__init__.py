"""Features built from blocks and streams: leading, watching, exclusive functions."""
