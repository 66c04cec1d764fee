"""The Django application, which replaces `migrate` by the guarded one."""

from django.apps import AppConfig


class VolcanoLocksConfig(AppConfig):
    """In `INSTALLED_APPS`, `"volcano_locks.contrib.django"` comes before other applications that replace `migrate`."""

    name = "volcano_locks.contrib.django"
    label = "volcano_locks"
    verbose_name = "volcano-locks"
