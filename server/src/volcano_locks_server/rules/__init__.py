"""The rules of leases, quotas and input values: pure functions, without I/O and without a clock."""
