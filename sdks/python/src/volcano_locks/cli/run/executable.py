"""Finds the program before the lock is acquired, so that a misspelt command never acquires it."""

import os

from .. import exit_codes


def find_program(name: str) -> str:
    """The path that exec of `name` would run. Exit 127 (not found) or 126 (not executable), as in shells."""
    if not name:
        raise exit_codes.Exit("the command is empty", exit_codes.USAGE)
    candidates = [name] if os.sep in name else [os.path.join(folder, name) for folder in os.get_exec_path()]  # noqa: PTH118
    existing = [path for path in candidates if os.path.exists(path)]  # noqa: PTH110 (pathlib would drop `./`)
    for path in existing:
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112
            return path
    if existing:
        raise exit_codes.Exit(f"{existing[0]}: not executable; nothing was run", exit_codes.NOT_EXECUTABLE)
    raise exit_codes.Exit(f"{name}: command not found; nothing was run", exit_codes.NOT_FOUND)
