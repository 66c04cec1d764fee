"""Scenario files: their vocabulary and their parser."""
