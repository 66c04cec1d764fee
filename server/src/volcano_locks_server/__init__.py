"""The lock service: one pure rule, stores that only remember, one HTTP door."""
