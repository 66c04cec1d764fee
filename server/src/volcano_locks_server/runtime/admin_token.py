"""The admin token: the one in the settings, or one that is generated and stored beside the database."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from .settings import Settings, SettingsError

TOKEN_BYTES: Final = 32


def admin_token(settings: Settings, database: Path | None) -> str:
    """The token of a server with these settings and this SQLite file (None: another store).

    A generated token is stored in `<database>.admin-token`, which only its owner can read. Call with the store open:
    its file lock keeps a second server from generating another. Raises SettingsError if the file cannot be used.
    """
    if settings.admin_token is not None:
        return settings.admin_token
    if database is None:
        return _new_token()
    path = token_path(database)
    try:
        return _read(path) if path.exists() else _write(path, _new_token())
    except OSError as error:
        raise SettingsError(
            f"the admin token's file {path} cannot be used: {error.strerror}; "
            "let this user read and write it, or set VOLCANO_LOCKS_ADMIN_TOKEN"
        ) from None


def token_path(database: Path) -> Path:
    """The file of this database's generated token."""
    return database.with_name(database.name + ".admin-token")


def _new_token() -> str:
    return "admin-" + secrets.token_urlsafe(TOKEN_BYTES)


def _read(path: Path) -> str:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise SettingsError(
            f"other users can read the admin token's file {path}: chmod 600 it, or delete it for a new token"
        )
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if not token.startswith("admin-") or len(token) != len(_new_token()):
        raise SettingsError(f"the admin token's file {path} holds no token: delete it for a new one")
    return token


def _write(path: Path, token: str) -> str:
    """Write the file atomically: to another name first, then rename it."""
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    return token
