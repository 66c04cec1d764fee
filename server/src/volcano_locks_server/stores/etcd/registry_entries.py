"""The registry's entries as etcd stores them, in JSON."""

import msgspec

from ...ports.registry import ServiceKey


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


class SecretTarget(msgspec.Struct, frozen=True):
    """The project and the service key that a secret belongs to."""

    project_id: str
    key_id: str
