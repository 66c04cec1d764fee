"""Benchmarks: the cost of the lock service, compared with etcd, Redis and PostgreSQL on the same machine."""
