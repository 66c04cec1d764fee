"""`manage.py migrate` on every host at once: one host migrates, the others wait and then find nothing to do."""

from typing import Any

from django.core.management.commands.migrate import Command as MigrateCommand

from volcano_locks.contrib.django import LockedCommand, setting


class Command(LockedCommand, MigrateCommand):
    """Django's `migrate` under a lock, when it is run from a command line. Test runners call it without."""

    lock_on_held = "wait"

    def needs_lock(self, options: dict[str, Any]) -> bool:
        """Not for `--plan` and `--check`, which only read."""
        self.lock_key = setting("MIGRATE_KEY")
        self.lock_wait = setting("MIGRATE_WAIT")
        return self._called_from_command_line and not (options.get("plan") or options.get("check_unapplied"))
