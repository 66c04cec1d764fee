"""What the service needs from the world, as protocols: a clock, stores, messages between nodes."""
