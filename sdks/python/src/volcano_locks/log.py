"""The client's log, `logging.getLogger("volcano_locks")` (SDK-25).

Acquires, renewals, releases and waits are logged at debug, losses and failed renewals at warning. A handler that raises
does not disturb the caller, and no line contains a token or a key.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

DEBUG, WARNING = 10, 30


class _Log:
    def __init__(self) -> None:
        self._logger: logging.Logger | None = None

    def debug(self, message: str, *args: object) -> None:
        self._log(DEBUG, message, args)

    def warning(self, message: str, *args: object) -> None:
        self._log(WARNING, message, args)

    def _log(self, level: int, message: str, args: tuple[object, ...]) -> None:
        logger = self._logger or self._new_logger()
        if logger is None or not logger.isEnabledFor(level):
            return
        try:
            logger.log(level, message, *args)
        except Exception:  # noqa: BLE001 - logging never decides an outcome (case 81)
            return

    def _new_logger(self) -> "logging.Logger | None":
        """None in a program that has not loaded `logging`, which takes long and has no handler then."""
        module: Any = sys.modules.get("logging")
        if module is None:
            return None
        logger: logging.Logger = module.getLogger("volcano_locks")
        logger.addHandler(module.NullHandler())  # a program that configures no logging gets no lines on its stderr
        self._logger = logger
        return logger


log = _Log()
