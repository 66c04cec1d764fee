"""What a client sends and reads, without I/O: arguments, operations as generators, and responses."""
