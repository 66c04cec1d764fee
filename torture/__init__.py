"""The torture: real engines, nodes and clients of three languages under faults of every kind, checked by histories.

    make torture MINUTES=60 [ENGINE=etcd] [SEED=…]

See docs/architecture/torture.md.
"""
