"""Asks for confirmation before a change that cannot be undone (CLI-11)."""

import sys

import click

from . import exit_codes
from .output import visible


def require_terminal(instead: str = "--yes") -> None:
    """Raises Exit 64 if no question can be asked, with the options to use instead."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise exit_codes.Exit(f"cannot ask for confirmation without a terminal; pass {instead}", exit_codes.USAGE)


def confirm(question: str, yes: bool) -> None:
    """Returns after a yes on the terminal, or if `yes`. Raises Exit on a no or without a terminal."""
    if yes:
        return
    require_terminal()
    try:
        answer = click.confirm(visible(question), err=True)
    except click.Abort:
        click.echo(err=True)  # Ctrl-C and Ctrl-D leave the cursor after the question
        raise
    if not answer:
        raise exit_codes.Exit("cancelled, nothing was changed", exit_codes.NOT_DONE)
