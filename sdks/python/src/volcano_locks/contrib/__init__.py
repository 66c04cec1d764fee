"""Integrations with frameworks. Each module imports its framework, and nothing else of the package imports them."""
