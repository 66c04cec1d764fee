"""Asking before something that cannot be undone (CLI-11)."""

import sys

import click

from . import exits


def ask(question: str, yes: bool) -> None:
    """Go on after a yes, or when `yes` was given; Stop otherwise, and at once when nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise exits.Stop("this asks first, and nobody is here to answer; pass --yes to go on", exits.USAGE)
    try:
        answer = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # Ctrl-C and Ctrl-D leave the cursor behind the question
        raise
    if not answer:
        raise exits.Stop("nothing was changed", exits.NOT_DONE)
