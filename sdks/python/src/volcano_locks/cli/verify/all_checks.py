"""All checks in the order of the report.

A `public` check is about what the public API documents and its own clients rely on. `ours` is what this project adds,
or decides where the public API leaves a choice: retired tokens, repeated releases, error codes other than the two of
409, generated and echoed request ids, the holder's label.

Not checked: the holders' reserve (QUOTA-5), which shows only when the project's quota is spent; the deadline after 90
days; that acknowledged changes survive a crash.
"""

from typing import Final

from . import block_checks, expiry_checks, http_checks, ownership_checks

CHECKS: Final = (*ownership_checks.CHECKS, *http_checks.CHECKS, *block_checks.CHECKS, *expiry_checks.CHECKS)
