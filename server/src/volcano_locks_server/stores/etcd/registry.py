"""Projects and service keys in etcd.

Ids, names and secrets are unique because the transaction that writes them demands that their keys are not there.
What a change relies on is compared in the transaction that makes it; if that fails, all is read and judged anew.
Lists go by the revision that created an entry: it rises, is never used twice, and no change moves it.

A project is deleted by one transaction that takes the project away; from then on no secret opens it and nothing can
be added to it. Its keys and locks go afterwards, in bites. A mark says so until they are gone, so that any node goes
on (`finish_deletions`) where one died in between.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from ...ports.registry import Credential, Page, Project, ServiceKey
from ...rules.errors import LockError, StoreUnavailableError
from ..cursor import cursor_after, place_of
from ..errors import project_name_taken, project_not_found, service_key_name_taken, service_key_not_found
from .endpoints import Members
from .layout import Layout, after, end_of
from .transactions import Delete, Found, Guard, Op, Put, Read

ATTEMPTS_MAX: Final = 10
BITE: Final = 30  # service keys of one transaction: four deletions each, and etcd allows 128
LOCKS_BITE: Final = 500

T = TypeVar("T")


class Secret(msgspec.Struct, frozen=True):
    """A digest in hex, and until when it is good; None for the secret that counts now."""

    digest: str
    good_until_ms: int | None = None


class Kept(msgspec.Struct, frozen=True):
    """A service key with its secrets: the one that counts, then the one before while that is remembered."""

    service_key: ServiceKey
    secrets: tuple[Secret, ...]

    def digests(self) -> list[bytes]:
        """Of all its secrets."""
        return [bytes.fromhex(secret.digest) for secret in self.secrets]


class _Opens(msgspec.Struct, frozen=True):
    """What a secret opens."""

    project_id: str
    key_id: str


class EtcdRegistry:
    """The Registry. Made by `EtcdCluster`."""

    def __init__(self, members: Members, layout: Layout) -> None:
        self._members: Final = members
        self._layout: Final = layout

    async def add_project(self, project: Project) -> None:
        key, name = self._layout.project(project.id), self._layout.project_name(project.name)
        deleting = self._layout.deletion(project.id)
        answer = await self._members.write(
            (Guard(key, 0), Guard(name, 0), Guard(deleting, 0)),
            (Put(key, _written(project)), Put(name, project.id.encode())),
            (Read(name),),
        )
        if not answer.succeeded:
            if answer.one(0) is not None:
                raise project_name_taken(project.name)
            raise LockError("name_taken", "a project with this id exists already")

    async def project(self, project_id: str) -> Project:
        return (await self._project(project_id))[1]

    async def projects(self, *, limit: int, cursor: str | None) -> Page:
        begin = self._layout.projects
        found = await self._list(begin, place_of("projects", cursor), limit + 1)
        return Page([_project(one) for one in found[:limit]], _next_cursor("projects", found, limit))

    async def change_project(self, project_id: str, *, name: str | None, requests_per_minute: int | None) -> Project:
        for _ in range(ATTEMPTS_MAX):
            found, before = await self._project(project_id)
            changed = replace(
                before,
                name=before.name if name is None else name,
                requests_per_minute=before.requests_per_minute if requests_per_minute is None else requests_per_minute,
            )
            guards, then = [Guard(found.key, found.mod_revision)], [Put(found.key, _written(changed))]
            otherwise = []
            if changed.name != before.name:
                new_name = self._layout.project_name(changed.name)
                guards.append(Guard(new_name, 0))
                then += [Put(new_name, project_id.encode())]
                then += [Delete(self._layout.project_name(before.name))]  # type: ignore[list-item]
                otherwise = [Read(new_name)]
            answer = await self._members.write(guards, then, otherwise)
            if answer.succeeded:
                return changed
            if otherwise and answer.one(0) is not None:
                raise project_name_taken(changed.name)
        raise _conflict()

    async def delete_project(self, project_id: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            found, project = await self._project(project_id)
            name, mark = self._layout.project_name(project.name), self._layout.deletion(project_id)
            answer = await self._members.write(
                [Guard(found.key, found.mod_revision)], [Delete(found.key), Delete(name), Put(mark, b"")]
            )
            if answer.succeeded:
                return await self._finish_deletion(project_id)
        raise _conflict()

    async def finish_deletions(self) -> None:
        """Go on with what a node that died has left."""
        marks = (await self._members.read(Read(self._layout.deletions, end_of(self._layout.deletions)))).found[0]
        for mark in marks:
            await self._finish_deletion(mark.key[len(self._layout.deletions) :].decode())

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes) -> None:
        await self.add_kept(Kept(service_key, (Secret(secret_digest.hex()),)))

    async def add_kept(self, kept: Kept) -> None:
        """A key with all its secrets."""
        service_key = kept.service_key
        key, name = self._key_and_name(service_key)
        secrets = list(map(self._layout.secret, kept.digests()))
        opens = msgspec.json.encode(_Opens(service_key.project_id, service_key.id))
        for _ in range(ATTEMPTS_MAX):
            project, _project = await self._project(service_key.project_id)
            answer = await self._members.write(
                (Guard(project.key, project.mod_revision), *(Guard(one, 0) for one in (key, name, *secrets))),
                (
                    Put(key, msgspec.json.encode(kept)),
                    Put(name, service_key.id.encode()),
                    *(Put(secret, opens) for secret in secrets),
                ),
                (Read(name), Read(key), *map(Read, secrets)),
            )
            if answer.succeeded:
                return
            if answer.one(0) is not None:
                raise service_key_name_taken(service_key.name)
            if any(answer.found):
                raise LockError("name_taken", "a service key with this id or secret exists already")
        raise _conflict()

    async def service_key(self, project_id: str, key_id: str) -> ServiceKey:
        return (await self._kept(project_id, key_id))[1].service_key

    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page:
        place = place_of("service-keys", cursor)
        await self._project(project_id)
        named = await self._list(self._layout.keys_of(project_id), place, limit + 1)
        keys = [kept.service_key for kept in await self._kept_keys(named[:limit])]
        return Page(keys, _next_cursor("service-keys", named, limit))

    async def delete_service_key(self, project_id: str, key_id: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            found, kept, _project_guard = await self._kept(project_id, key_id)
            guard = Guard(found.key, found.mod_revision)
            if (await self._members.write([guard], self._deletions(kept))).succeeded:
                return
        raise _conflict()

    async def replace_secret(
        self,
        project_id: str,
        key_id: str,
        *,
        secret_digest: bytes,
        key_prefix: str,
        old_secret_good_until_ms: int | None,
    ) -> ServiceKey:
        """Only the secret before this one may live on; any older one ends now."""
        secret, opens = self._layout.secret(secret_digest), msgspec.json.encode(_Opens(project_id, key_id))
        for _ in range(ATTEMPTS_MAX):
            found, before, project_guard = await self._kept(project_id, key_id)
            current, *older = before.secrets
            ended = [*older, *([current] if old_secret_good_until_ms is None else [])]
            lives_on = () if old_secret_good_until_ms is None else (Secret(current.digest, old_secret_good_until_ms),)
            changed = Kept(replace(before.service_key, key_prefix=key_prefix), (Secret(secret_digest.hex()), *lives_on))
            answer = await self._members.write(
                (project_guard, Guard(found.key, found.mod_revision), Guard(secret, 0)),
                (
                    Put(found.key, msgspec.json.encode(changed)),
                    Put(secret, opens),
                    *(Delete(self._layout.secret(bytes.fromhex(one.digest))) for one in ended),
                ),
                [Read(secret)],
            )
            if answer.succeeded:
                return changed.service_key
            if answer.one(0) is not None:
                raise LockError("name_taken", "a service key with this secret exists already")
        raise _conflict()

    async def credential(self, secret_digest: bytes) -> Credential | None:
        """Nothing that is left of a deleted project or key opens anything: all three must be there and agree."""
        found = (await self._members.read(Read(self._layout.secret(secret_digest)))).one(0)
        if found is None:
            return None
        opens = msgspec.json.decode(found.value, type=_Opens)
        reads = Read(self._layout.service_key(opens.key_id)), Read(self._layout.project(opens.project_id))
        answer = await self._members.read(*reads)
        key, project = answer.one(0), answer.one(1)
        if key is None or project is None:
            return None
        kept = _kept(key)
        secret = next((one for one in kept.secrets if one.digest == secret_digest.hex()), None)
        if secret is None or kept.service_key.project_id != opens.project_id:
            return None
        ends = [end for end in (kept.service_key.expires_at_ms, secret.good_until_ms) if end is not None]
        return Credential(kept.service_key, _project(project), min(ends, default=None))

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        for key_id, at_ms in last_used_at_ms.items():
            for _ in range(ATTEMPTS_MAX):
                found = (await self._members.read(Read(self._layout.service_key(key_id)))).one(0)
                if found is None or at_ms <= (_kept(found).service_key.last_used_at_ms or 0):
                    break
                kept = _kept(found)
                used = Kept(replace(kept.service_key, last_used_at_ms=at_ms), kept.secrets)
                put = Put(found.key, msgspec.json.encode(used))
                if (await self._members.write([Guard(found.key, found.mod_revision)], [put])).succeeded:
                    break

    async def all_projects(self, page_max: int) -> AsyncIterator[Sequence[Project]]:
        """In the order of their creation, page by page."""
        async for page in self._pages(self._layout.projects, page_max):
            yield [_project(found) for found in page]

    async def all_keys(self, page_max: int) -> AsyncIterator[Sequence[Kept]]:
        """In the order of their creation, page by page; also what a deleted project has left."""
        async for page in self._pages(self._layout.service_keys, page_max):
            yield [_kept(found) for found in page]

    async def _pages(self, begin: bytes, page_max: int) -> AsyncIterator[Sequence[Found]]:
        place = 0
        while page := await self._list(begin, place, page_max):
            yield page
            place = page[-1].create_revision

    async def _list(self, begin: bytes, place: int, limit: int) -> Sequence[Found]:
        """Up to `limit` entries created behind `place`, in that order."""
        return (await self._members.read(Read(begin, end_of(begin), limit, created_from=place + 1))).found[0]

    async def _project(self, project_id: str) -> tuple[Found, Project]:
        found = (await self._members.read(Read(self._layout.project(project_id)))).one(0)
        if found is None:
            raise project_not_found()
        return found, _project(found)

    async def _kept(self, project_id: str, key_id: str) -> tuple[Found, Kept, Guard]:
        """The key, and what says that its project is still as it was."""
        reads = Read(self._layout.service_key(key_id)), Read(self._layout.project(project_id))
        answer = await self._members.read(*reads)
        found, project = answer.one(0), answer.one(1)
        if found is None or project is None or _kept(found).service_key.project_id != project_id:
            raise service_key_not_found()
        return found, _kept(found), Guard(project.key, project.mod_revision)

    async def _kept_keys(self, named: Iterable[Found]) -> list[Kept]:
        """What is kept of these, but for those that went meanwhile."""
        reads = [Read(self._layout.service_key(one.value.decode())) for one in named]
        answer = await self._members.read(*reads) if reads else None
        return [] if answer is None else [_kept(found[0]) for found in answer.found if found]

    def _key_and_name(self, key: ServiceKey) -> tuple[bytes, bytes]:
        return self._layout.service_key(key.id), self._layout.key_name(key.project_id, key.name)

    def _deletions(self, kept: Kept) -> list[Op]:
        secrets = map(self._layout.secret, kept.digests())
        return [Delete(key) for key in (*self._key_and_name(kept.service_key), *secrets)]

    async def _finish_deletion(self, project_id: str) -> None:
        """Keys, then locks, then the mark. May be done twice, or by two nodes at once."""
        names = self._layout.keys_of(project_id)
        while named := (await self._members.read(Read(names, end_of(names), BITE))).found[0]:
            of_keys = [op for kept in await self._kept_keys(named) for op in self._deletions(kept)]
            orphans = {one.key for one in named} - {op.key for op in of_keys}
            await self._members.write((), [*of_keys, *map(Delete, orphans)])
        locks = self._layout.locks_of(project_id)
        while bite := (await self._members.read(Read(locks, end_of(locks), LOCKS_BITE, keys_only=True))).found[0]:
            await self._members.write((), [Delete(locks, after(bite[-1].key))])
        await self._members.write(
            (), [Delete(self._layout.quota(project_id)), Delete(self._layout.deletion(project_id))]
        )


def _written(project: Project) -> bytes:
    return msgspec.json.encode(project)


def _project(found: Found) -> Project:
    return msgspec.json.decode(found.value, type=Project)


def _kept(found: Found) -> Kept:
    return msgspec.json.decode(found.value, type=Kept)


def _next_cursor(kind: str, found: Sequence[Found], limit: int) -> str | None:
    return cursor_after(kind, found[limit - 1].create_revision) if len(found) > limit else None


def _conflict() -> StoreUnavailableError:
    return StoreUnavailableError("conflict", "other nodes kept changing the same entries: try again in a moment")
