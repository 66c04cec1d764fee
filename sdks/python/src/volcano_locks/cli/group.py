"""A command group whose usage errors name the command that the user probably means."""

from difflib import get_close_matches
from typing import Any, Final

import click

# Words from similar tools, and this program's commands for them.
OTHER_WORDS: Final = {
    "locks": ("ls",),
    "status": ("get", "ls"),
    "show": ("get",),
    "who": ("get", "history"),
    "list": ("ls",),
    "stuck": ("ls",),
    "log": ("history", "audit"),
    "force": ("force-release",),
    "free": ("force-release",),
    "quota": ("project", "set"),
    "rotate": ("key",),
    "new": ("create",),
    "add": ("create",),
    "update": ("set",),
    "lock": ("run", "acquire"),
    "unlock": ("release", "force-release"),
    "start": ("serve", "dev"),
    "rm": ("delete", "revoke"),
    "help": ("--help",),
    "version": ("--version",),
}


class Group(click.Group):
    """Suggests a command for an unknown one, and where to put an option that belongs to a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's parsing."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = f"Options of a command follow it: {ctx.command_path} COMMAND {error.option_name}"
            raise click.UsageError(f"{error.format_message()}\n{advice}", ctx) from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """click's look-up."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            found = " or ".join(f"`{ctx.command_path} {name}`" for name in self._similar(ctx, args[0]))
            if not found:
                raise
            raise click.UsageError(f"No such command {args[0]!r}.\nDid you mean {found}?", ctx) from None

    def _similar(self, ctx: click.Context, word: str) -> list[str]:
        known = self.list_commands(ctx)
        meant = [name for name in OTHER_WORDS.get(word, ()) if name in known or name.startswith("--")]
        return meant or get_close_matches(word.lower(), known, n=2)
