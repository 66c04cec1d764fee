"""Logs and metrics: lines of JSON on stderr, and the Prometheus text format.

Both belong to one `Server`, so that several servers fit in one process. Neither ever holds an owner token or a
credential. Lock keys and project ids may appear in log lines, never in the labels of metrics.
"""

from .log import LineWriter, Log, PlainWriter
from .metrics import Metrics

__all__ = ["LineWriter", "Log", "Metrics", "PlainWriter"]
