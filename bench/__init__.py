"""What the lock service costs, measured beside peers on the same machine. See bench/README.md."""
