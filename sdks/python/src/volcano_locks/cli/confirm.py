"""Asks for confirmation before a change that cannot be undone (CLI-11)."""

import sys

import click

from . import exit_codes


def confirm(question: str, yes: bool) -> None:
    """Returns after a yes on the terminal, or if `yes`. Raises Exit on a no or without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise exit_codes.Exit("cannot ask for confirmation without a terminal; pass --yes", exit_codes.USAGE)
    try:
        answer = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # Ctrl-C and Ctrl-D leave the cursor after the question
        raise
    if not answer:
        raise exit_codes.Exit("cancelled, nothing was changed", exit_codes.NOT_DONE)
