"""Django: management commands that run on one host at a time, and a guard for `migrate`.

    class Command(LockedCommand):
        def handle(self, *args, **options):
            send_newsletter(fencing_token=self.guard.fencing_token)

The setting `VOLCANO_LOCKS` may name the service and the defaults: see `SETTINGS`. To guard `migrate`, add
`"volcano_locks.contrib.django"` to `INSTALLED_APPS`.
"""

import math
from functools import cache
from typing import Any, Final, Literal

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from volcano_locks import AuthenticationError, Client, LockGuard, LockHeldError, LockOwnershipLostError, VolcanoError
from volcano_locks.cli.exit_codes import CREDENTIALS, NOT_ACQUIRED, OWNERSHIP_LOST, UNAVAILABLE
from volcano_locks.contrib._interrupts import interrupted_by_loss

SETTINGS: Final[dict[str, Any]] = {
    "API_URL": None,
    "SERVICE_KEY": None,
    "TTL": 60,
    "MIGRATE_KEY": "django-migrate",
    "MIGRATE_WAIT": 900.0,
}
"""The defaults of `settings.VOLCANO_LOCKS`. None stands for `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY`."""


def setting(name: str) -> Any:
    """One value of `settings.VOLCANO_LOCKS`, or its default. Raises `ImproperlyConfigured` for unknown names."""
    given = getattr(settings, "VOLCANO_LOCKS", {})
    unknown = sorted(set(given) - set(SETTINGS))
    if unknown:
        raise ImproperlyConfigured(f"VOLCANO_LOCKS has {', '.join(unknown)}; known names are {', '.join(SETTINGS)}")
    return given.get(name, SETTINGS[name])


@cache
def client() -> Client:
    """The client of this process, with the settings of `VOLCANO_LOCKS`. Forked children may use it too."""
    return Client(setting("API_URL"), setting("SERVICE_KEY"))


class LockedCommand(BaseCommand):
    """A management command that runs while it holds a lock.

        class Command(LockedCommand):
            lock_key = "newsletter"
            lock_on_held = "skip"

            def handle(self, *args, **options):
                self.guard.raise_if_lost()

    Its exit codes are those of `volcano-locks run`: 75 if the lock is held (0 with `lock_on_held = "skip"`), 76 if the
    lease was lost, 77 if the service key is refused, 69 if the service does not respond. Code that uses `call_command`
    gets them as `CommandError.returncode`. A loss raises `LockOwnershipLostError` inside `handle` in the main thread.
    """

    lock_key: str | None = None
    """The lock's key; by default `django-` and the command's name."""
    lock_ttl: int | None = None
    """Seconds; by default the setting `TTL`."""
    lock_on_held: Literal["fail", "skip", "wait"] = "fail"
    lock_wait: float = math.inf
    """Seconds that `lock_on_held = "wait"` waits at most."""
    lock_hold_at_least: float | None = None
    """Keep the lock so many seconds, for hosts whose cron starts the command a little later."""
    guard: LockGuard
    """The lease's guard, while `handle` runs."""

    def needs_lock(self, options: dict[str, Any]) -> bool:
        """Whether this run takes the lock. Override it for options that only read."""
        del options
        return True

    def execute(self, *args: Any, **options: Any) -> Any:
        """Acquire the lock, run the checks and `handle`, and release it."""
        if not self.needs_lock(options):
            return super().execute(*args, **options)
        entered = False
        try:
            with self._block() as self.guard, interrupted_by_loss(self.guard):
                entered = True
                return super().execute(*args, **options)
        except LockHeldError as error:
            if entered:
                raise
            if self.lock_on_held == "skip":
                self.stderr.write(f"skipped: {error}")
                return None
            raise CommandError(f"not run: {error}", returncode=NOT_ACQUIRED) from error
        except LockOwnershipLostError as error:
            raise CommandError(f"stopped: {error}", returncode=OWNERSHIP_LOST) from error
        except VolcanoError as error:
            if entered:
                raise
            code = CREDENTIALS if isinstance(error, AuthenticationError) else UNAVAILABLE
            raise CommandError(f"not run: {error}", returncode=code) from error

    def _block(self) -> Any:
        key = self.lock_key or "django-" + type(self).__module__.rpartition(".")[2]
        return client().locks.with_lock(
            key,
            ttl=setting("TTL") if self.lock_ttl is None else self.lock_ttl,
            wait=self.lock_wait if self.lock_on_held == "wait" else None,
            hold_at_least=self.lock_hold_at_least,
        )
