"""The client's log, `logging.getLogger("volcano_locks")` (SDK-25).

Acquires, renewals, releases and waits are logged at debug, losses and failed renewals at warning. A handler that raises
does not disturb the caller, and no line contains a token or a key.
"""

import logging

_logger = logging.getLogger("volcano_locks")
_logger.addHandler(logging.NullHandler())  # a program that configures no logging gets no lines on its stderr


class _Log:
    def debug(self, message: str, *args: object) -> None:
        self._log(logging.DEBUG, message, args)

    def warning(self, message: str, *args: object) -> None:
        self._log(logging.WARNING, message, args)

    def _log(self, level: int, message: str, args: tuple[object, ...]) -> None:
        if not _logger.isEnabledFor(level):
            return
        try:
            _logger.log(level, message, *args)
        except Exception:  # noqa: BLE001 - logging never decides an outcome (case 81)
            return


log = _Log()
