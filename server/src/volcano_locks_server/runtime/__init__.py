"""Composition: settings, the server's parts and their lifetimes, processes."""
