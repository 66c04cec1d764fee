"""The rules of leases, quotas and values: pure functions of their arguments. No I/O and no clock."""
