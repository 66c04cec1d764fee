"""Asking before something that cannot be undone (CLI-11)."""

import sys

import click

from . import exit_codes


def ask(question: str, yes: bool) -> None:
    """Go on after a yes, or when `yes` was given; Stop otherwise, and at once when nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise exit_codes.Stop("this asks first, and nobody is here to answer; pass --yes to go on", exit_codes.USAGE)
    try:
        answer = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # Ctrl-C and Ctrl-D leave the cursor behind the question
        raise
    if not answer:
        raise exit_codes.Stop("nothing was changed", exit_codes.NOT_DONE)
