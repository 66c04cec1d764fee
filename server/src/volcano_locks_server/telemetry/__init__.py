"""What an operator sees of the server: lines of JSON on stderr, and numbers for Prometheus.

Both belong to one `Server`; several live side by side in a process. Neither ever holds an owner token or a
credential. Lock keys and project ids may stand in a log line and never in a metric's label.
"""

from .log import LineWriter, Log, PlainWriter, new_log
from .metrics import Metrics

__all__ = ["LineWriter", "Log", "Metrics", "PlainWriter", "new_log"]
