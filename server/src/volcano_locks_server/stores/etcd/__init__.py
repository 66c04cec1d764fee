"""The store for several nodes on an etcd cluster. See ../DESIGN.md for why it is so."""

from .cluster import EtcdCluster
from .locks import BATCH_MAX, BATCHES_IN_FLIGHT

__all__ = ["BATCHES_IN_FLIGHT", "BATCH_MAX", "EtcdCluster"]
