"""Guards the prefix of a store: what may be under it at the start, and that its schema key stays as it was (OPS-8)."""

from typing import Final

from ...rules.errors import StoreUnavailableError
from .endpoints import Endpoints
from .layout import LOADING, RESETTING, SCHEMA, Layout, end_of
from .transactions import Compare, Get, KeyValue, Put

_VALUE: Final = str(SCHEMA).encode()


class SchemaGuard:
    """The schema key of one node's prefix. `is_loading`: this node loads a copy, and changes the key itself."""

    def __init__(self, endpoints: Endpoints, layout: Layout) -> None:
        self.is_loading = False
        self.has_created = False
        """Whether this node wrote the schema key of an unused prefix."""
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._create_revision: int | None = None

    async def open(self) -> bool:
        """Check the prefix, and write the schema key if the prefix is unused. Returns whether nodes may serve from it,
        False after an incomplete load. Raises StoreUnavailableError, whose message says what to do.
        """
        await self._refuse_nested_prefix()
        found, used = await self._schema_and_content()
        if found is None:
            if used:
                raise _schema_missing()
            key = self._layout.schema
            result = await self._endpoints.write([Compare(key, 0)], [Put(key, _VALUE)], [Get(key)])
            self.has_created = result.succeeded
            found, _ = await self._schema_and_content()
        if found is not None and found.value == RESETTING:
            raise _half_reset()
        if found is None or found.value not in (_VALUE, LOADING):
            raise _schema_missing() if found is None else _newer_version()
        self._create_revision = found.create_revision
        return found.value == _VALUE

    def check(self, found: KeyValue | None) -> None:
        """While the node serves: raise StoreUnavailableError, and refuse every later call, if the key changed."""
        if self._create_revision is None or self.is_loading:
            return
        if found is None or found.create_revision != self._create_revision:
            self._endpoints.refusal = _schema_missing()
        elif found.value == RESETTING:
            self._endpoints.refusal = _half_reset()
        elif found.value == LOADING:
            self._endpoints.refusal = half_loaded()
        elif found.value != _VALUE:
            self._endpoints.refusal = _newer_version()
        if self._endpoints.refusal is not None:
            raise self._endpoints.refusal

    async def _schema_and_content(self) -> tuple[KeyValue | None, bool]:
        """The schema key, and whether any key is under the prefix."""
        prefix = self._layout.prefix
        result = await self._endpoints.read(Get(self._layout.schema), Get(prefix, end_of(prefix), 1, keys_only=True))
        return result.one(0), bool(result.reads[1])

    async def _refuse_nested_prefix(self) -> None:
        """Raise StoreUnavailableError if the prefix lies inside that of another store, or contains one."""
        layout = self._layout
        for begin, end in ((layout.prefix, layout.root), (end_of(layout.root), end_of(layout.prefix))):
            others = (await self._endpoints.read(Get(begin, end, 2, keys_only=True))).reads[0]
            if any(other.key != layout.schema for other in others):
                raise _nested("there are other keys under it")
        for outer in layout.outer_schemas:
            try:
                found = (await self._endpoints.read(Get(outer, keys_only=True))).one(0)
            except StoreUnavailableError as error:
                if error.cause_code != "etcd_permission":  # a user who may not read there uses no store there
                    raise
                found = None
            if found is not None:
                raise _nested("it lies inside the prefix of another store")


def half_loaded() -> StoreUnavailableError:
    """The error of every call on an incomplete copy."""
    return StoreUnavailableError(
        "half_loaded", "the copy under this prefix of etcd is incomplete: copy again, or name another prefix"
    )


def _half_reset() -> StoreUnavailableError:
    return StoreUnavailableError(
        "half_reset", "a reset of this store's clock is not finished: run volcano-locks reset-clock again"
    )


def _newer_version() -> StoreUnavailableError:
    return StoreUnavailableError(
        "newer_version",
        f"another release wrote the layout under this prefix of etcd; this release knows {SCHEMA}: "
        "use a newer release, or name another prefix in the store's URL",
    )


def _schema_missing() -> StoreUnavailableError:
    return StoreUnavailableError(
        "schema_missing",
        "the schema key under this prefix of etcd was deleted or replaced: restore the prefix and start again, or name "
        "another prefix in the store's URL",
    )


def _nested(reason: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        "nested_prefix", f"the prefix in the store's URL cannot be used, because {reason}: name another prefix"
    )
