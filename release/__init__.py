"""Builds the packages that a release publishes: `make dist`."""
