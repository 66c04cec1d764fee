"""Reads a file that holds one secret: a token, or a URL with a password."""

import stat
from pathlib import Path
from typing import Final

SECRET_BYTES_MAX: Final = 4_096


class SecretFileError(ValueError):
    """The file cannot be used. The message says why and does not contain what is in it."""


def read_secret(path: Path) -> str:
    """The text in the file, without the white space around it. Raises SecretFileError."""
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(path.stat().st_mode) & stat.S_IROTH:
                raise SecretFileError(f"names {path}, which every user can read: run chmod o-r {path}")
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise SecretFileError(f"names {path}, which cannot be read: {error.strerror}") from None
    if len(content) > SECRET_BYTES_MAX:
        raise SecretFileError(f"names {path}, which has more than {SECRET_BYTES_MAX} bytes")
    text = content.decode("utf-8", "replace").strip()
    if not text:
        raise SecretFileError(f"names {path}, which is empty")
    return text
