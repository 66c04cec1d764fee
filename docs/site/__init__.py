"""Builds the docs site from the repository's documents: `make docs`."""
