"""The store for several nodes on an etcd cluster. See ../DESIGN.md for why it is so."""

from .locks import BATCH_MAX, BATCHES_IN_FLIGHT
from .store import EtcdCluster

__all__ = ["BATCHES_IN_FLIGHT", "BATCH_MAX", "EtcdCluster"]
