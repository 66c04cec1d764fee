"""A restore does not bring back what the replaced file knew as revoked (KEEP-8)."""

from pathlib import Path

import apsw
import pytest

from volcano_locks_server.ports.registry import NewSecret, Project, ServiceKey
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.stores.sqlite import SqliteFile
from volcano_locks_server.testing import ManualClock

from ..store_actions import digest, held, key, write_records
from .test_backup import backed_up, opened, restored

FIRST, SECOND = Project("p-1", "first", 0, 1), Project("p-2", "second", 0, 1)
NAMES = ("kept", "revoked", "rotated", "overlapping", "of-deleted-project")


def service_key(name: str) -> ServiceKey:
    project = SECOND if name == "of-deleted-project" else FIRST
    return ServiceKey(f"id-{name}", project.id, name, f"sk-{name}", ("*",), 1)


async def filled(path: Path, clock: ManualClock) -> SqliteFile:
    file = await opened(path, clock)
    for project in (FIRST, SECOND):
        await file.registry.add_project(project)
    for name in NAMES:
        await file.registry.add_service_key(service_key(name), digest(name))
    await write_records(file.locks, (key("a"), held("a", clock.now_ms())))
    return file


async def revoke(file: SqliteFile, clock: ManualClock) -> None:
    await file.registry.delete_service_key(FIRST.id, "id-revoked")
    await file.registry.replace_secret(FIRST.id, "id-rotated", NewSecret(digest("rotated-2"), "sk-new"))
    overlap = NewSecret(digest("overlapping-2"), "sk-newer", clock.now_ms() + 1_000)
    await file.registry.replace_secret(FIRST.id, "id-overlapping", overlap)
    await file.registry.delete_project(SECOND.id)


async def valid(file: SqliteFile) -> dict[str, str]:
    """The ids of the keys that these secrets open."""
    found = {}
    for secret in (*NAMES, "rotated-2", "overlapping-2"):
        credential = await file.registry.credential(digest(secret))
        if credential is not None:
            found[secret] = credential.service_key.id
    return found


async def test_revoked_keys_and_replaced_secrets_do_not_come_back(
    path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """KEEP-8: by their key, by their project, and by a rotation; also with the next restore of the same backup."""
    file = await filled(path, clock)
    await backed_up(file, tmp_path / "backup")
    await revoke(file, clock)
    await file.close()
    for _ in range(2):
        done = restored(tmp_path / "backup", path, clock)
        assert (done.keys_revoked, done.secrets_replaced) == (2, 2)
        file = await opened(path, clock)
        assert await valid(file) == {
            "kept": "id-kept",
            "rotated-2": "id-rotated",
            "overlapping": "id-overlapping",
            "overlapping-2": "id-overlapping",
        }
        assert (await file.registry.service_key(FIRST.id, "id-rotated")).key_prefix == "sk-new"
        credential = await file.registry.credential(digest("overlapping"))
        assert credential is not None
        assert credential.good_until_ms is not None
        with pytest.raises(LockError, match="no service key with this id"):
            await file.registry.service_key(FIRST.id, "id-revoked")
        await file.close()


async def test_a_lost_file_takes_its_memory_along(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-8: the restore says so."""
    file = await filled(path, clock)
    await backed_up(file, tmp_path / "backup")
    await revoke(file, clock)
    await file.close()
    path.unlink()
    done = restored(tmp_path / "backup", path, clock)
    assert (done.keys_revoked, done.secrets_replaced) == (None, None)
    file = await opened(path, clock)
    assert set(await valid(file)) == set(NAMES)
    await file.close()


async def test_an_older_file_changes_no_secret_of_a_newer_backup(
    path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """KEEP-8: the newer of the two knows which secret counts; a revoked key stays revoked in both directions."""
    file = await filled(path, clock)
    await backed_up(file, tmp_path / "old")
    await revoke(file, clock)
    clock.advance(1_000)
    await write_records(file.locks, (key("a"), held("a", clock.now_ms())))
    await backed_up(file, tmp_path / "new")
    await file.close()
    path.unlink()
    restored(tmp_path / "old", path, clock)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE newest_instant SET boot_ms = boot_ms - now_ms + 1, now_ms = 1")
    connection.close()
    done = restored(tmp_path / "new", path, clock)
    assert (done.keys_revoked, done.secrets_replaced) == (0, 0)
    file = await opened(path, clock)
    assert set(await valid(file)) == {"kept", "rotated-2", "overlapping", "overlapping-2"}
    await file.close()


async def test_a_file_of_an_older_release_and_an_empty_file_revoke_nothing(
    path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """KEEP-8: an empty file is no proof that every key was revoked."""
    file = await filled(path, clock)
    await backed_up(file, tmp_path / "backup")
    await file.close()
    connection = apsw.Connection(str(path))
    connection.execute("DROP TRIGGER service_key_revoked; DROP TABLE revoked_key; PRAGMA user_version = 2")
    connection.close()
    assert restored(tmp_path / "backup", path, clock).keys_revoked == 0
    path.unlink()
    await (await opened(path, clock)).close()
    assert restored(tmp_path / "backup", path, clock).keys_revoked == 0
    file = await opened(path, clock)
    assert set(await valid(file)) == set(NAMES)
    await file.close()
