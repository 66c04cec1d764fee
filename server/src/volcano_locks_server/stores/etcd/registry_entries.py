"""The registry's entries as etcd stores them, in JSON. Every value is decoded here; one that another program spoilt
raises DamagedRecordError (LEASE-18).
"""

import re
from typing import Final, TypeVar

import msgspec

from ...ports.admin_tokens import AdminToken
from ...ports.registry import Project, ServiceKey
from ...rules.errors import DamagedRecordError
from ..damage import (
    admin_token_name,
    checked_admin_token,
    checked_project,
    checked_service_key,
    project_name,
    service_key_name,
    shown_stored,
)
from .transactions import KeyValue

E = TypeVar("E")

_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class SecretEntry(msgspec.Struct, frozen=True):
    """A digest in hex, and until when it is valid; None for the current secret."""

    digest: str
    good_until_ms: int | None = None


class ServiceKeyEntry(msgspec.Struct, frozen=True):
    """A service key with its secrets: the current one, then the previous one while that is stored."""

    service_key: ServiceKey
    secrets: tuple[SecretEntry, ...]

    def digests(self) -> list[bytes]:
        """The digests of all its secrets."""
        return [bytes.fromhex(secret.digest) for secret in self.secrets]

    def old_good_until_ms(self) -> int | None:
        """Until when the previous secret is valid; None if none is stored."""
        return next((secret.good_until_ms for secret in self.secrets[1:]), None)


class SecretTarget(msgspec.Struct, frozen=True):
    """The project and the service key that a secret belongs to."""

    project_id: str
    key_id: str


class AdminTokenEntry(msgspec.Struct, frozen=True):
    """An admin token and its digest in hex."""

    token: AdminToken
    digest: str


def project_in(found: KeyValue) -> Project:
    """The project in a value. Raises DamagedRecordError."""
    return checked_project(_decode(found, project_name(_last(found)), Project))


def service_key_in(found: KeyValue) -> ServiceKeyEntry:
    """The service key in a value. Raises DamagedRecordError."""
    name = service_key_name(_last(found))
    entry = _decode(found, name, ServiceKeyEntry)
    checked_service_key(entry.service_key)
    try:
        digests = entry.digests()
    except ValueError:
        digests = []
    if not digests:
        raise DamagedRecordError(name, "it has no digest of a secret", shown_stored(found.value))
    return entry


def admin_token_in(found: KeyValue) -> AdminTokenEntry:
    """The admin token in a value. Raises DamagedRecordError."""
    name = admin_token_name(_last(found))
    entry = _decode(found, name, AdminTokenEntry)
    checked_admin_token(entry.token)
    if _DIGEST.fullmatch(entry.digest) is None:
        raise DamagedRecordError(name, "it has no digest", shown_stored(found.value))
    return entry


def secret_target_in(found: KeyValue) -> SecretTarget:
    """The target in a value. Raises DamagedRecordError."""
    return _decode(found, f"secret/{_last(found)[:8]}", SecretTarget)


def _decode(found: KeyValue, name: str, kind: type[E]) -> E:
    try:
        return msgspec.json.decode(found.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRecordError(name, str(error)[:200], shown_stored(found.value)) from error


def _last(found: KeyValue) -> str:
    """The last part of the key, which is an id or a digest."""
    return found.key.rpartition(b"/")[2].decode("ascii", "backslashreplace")
