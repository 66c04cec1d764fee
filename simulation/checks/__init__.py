"""Checks of a simulated history, after every step. Each knows the true time and what the model engines committed."""
