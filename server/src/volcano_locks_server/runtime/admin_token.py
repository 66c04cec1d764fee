"""The admin token: the one that was set, or one made here and kept beside the data for the next start."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from .settings import Settings, SettingsError

TOKEN_BYTES: Final = 32


def admin_token(settings: Settings, database: Path | None) -> str:
    """The token of a server with these settings whose data is in `database` (None: in memory).

    A made token is kept in `<database>.admin-token`, readable by its owner alone. Call with the store open: its
    lock keeps a second server from making another. Raises SettingsError where the file cannot be used.
    """
    if settings.admin_token is not None:
        return settings.admin_token
    if database is None:
        return _made()
    path = token_path(database)
    try:
        return _kept(path) if path.exists() else _keep(path, _made())
    except OSError as error:
        raise SettingsError(f"the admin token's file {path} cannot be used: {error.strerror}") from None


def token_path(database: Path) -> Path:
    """Where the made token of this database is kept."""
    return database.with_name(database.name + ".admin-token")


def _made() -> str:
    return "admin-" + secrets.token_urlsafe(TOKEN_BYTES)


def _kept(path: Path) -> str:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise SettingsError(
            f"others may read the admin token's file {path}: chmod 600 it, or delete it for a new token"
        )
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if not token.startswith("admin-") or len(token) != len(_made()):
        raise SettingsError(f"the admin token's file {path} holds no token: delete it for a new one")
    return token


def _keep(path: Path, token: str) -> str:
    """Whole or not at all: written aside, then moved into place."""
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    return token
