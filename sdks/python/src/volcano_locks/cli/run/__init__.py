"""`volcano-locks run`: a command that runs only while this host holds the lock."""
