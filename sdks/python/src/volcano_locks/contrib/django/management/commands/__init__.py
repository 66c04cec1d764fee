"""The commands of the application: the guarded `migrate`."""
