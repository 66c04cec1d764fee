"""The etcd store, for several nodes. Design: docs/architecture/stores.md."""

from .locks import BATCH_MAX, BATCHES_IN_FLIGHT
from .store import EtcdCluster

__all__ = ["BATCHES_IN_FLIGHT", "BATCH_MAX", "EtcdCluster"]
