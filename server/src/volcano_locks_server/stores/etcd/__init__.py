"""The etcd store, for several nodes. Design: docs/architecture/stores.md."""

from .store import EtcdCluster

__all__ = ["EtcdCluster"]
