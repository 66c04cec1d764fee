"""Parses table and column names as people write them, and quotes them for SQL (CLI-21).

A name is parsed with its dialect's quoting and always printed quoted. So a reserved word works as a name, letter case
is kept, and no character of a name can end it. A name that the database would refuse or truncate is refused (PostgreSQL
truncates silently, and two tables would share a fence). So is an unprintable character, because names also appear in
comments, which end with the line. Whether the table exists is not checked.
"""

import re
from dataclasses import dataclass
from typing import Final

POSTGRESQL_NAME_BYTES_MAX: Final = 63
MYSQL_NAME_CHARACTERS_MAX: Final = 64
SQLITE_NAME_CHARACTERS_MAX: Final = 255
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class IdentifierSyntax:
    """How one dialect quotes names, and their maximum length in `unit` ("bytes" or "characters")."""

    quote: str
    length_max: int
    unit: str

    def parse(self, text: str, parts_max: int = 1) -> tuple[str, ...]:
        """The parts of `a`, `a.b` or `"a.x"."b"`, at most `parts_max`. Raises ValueError with a message."""
        parts = self._split(text)
        if len(parts) > parts_max:
            form = "one name" if parts_max == 1 else "TABLE or SCHEMA.TABLE"
            raise ValueError(f"must be {form}; got {_shown(text)} (a dot inside a name needs {self.quote} around it)")
        for part in parts:
            self.check(part)
        return parts

    def check(self, name: str) -> None:
        """Raises ValueError for a name that the database would refuse or truncate."""
        if not name.isprintable():
            raise ValueError(f"must have printable characters only; got {_shown(name)}")
        length = len(name.encode()) if self.unit == "bytes" else len(name)
        if length > self.length_max:
            raise ValueError(f"names have at most {self.length_max} {self.unit}; {_shown(name)} has {length}")

    def quoted(self, *parts: str) -> str:
        """The name as SQL: its parts quoted and joined by dots."""
        return ".".join(f"{self.quote}{part.replace(self.quote, self.quote * 2)}{self.quote}" for part in parts)

    def _split(self, text: str) -> tuple[str, ...]:
        part = re.compile(
            rf"{self.quote}((?:[^{self.quote}]|{self.quote}{self.quote})+){self.quote}|([^{self.quote}.]+)"
        )
        parts: list[str] = []
        position = 0
        while match := part.match(text, position):
            inside, bare = match.groups()
            parts.append(bare if inside is None else inside.replace(self.quote * 2, self.quote))
            position = match.end()
            if position == len(text):
                return tuple(parts)
            if text[position] != ".":
                break
            position += 1
        raise ValueError(
            f"{_shown(text)} is not a name: write it plain, or in {self.quote} with each {self.quote} in it doubled"
        )


POSTGRESQL: Final = IdentifierSyntax('"', POSTGRESQL_NAME_BYTES_MAX, "bytes")
MYSQL: Final = IdentifierSyntax("`", MYSQL_NAME_CHARACTERS_MAX, "characters")
SQLITE: Final = IdentifierSyntax('"', SQLITE_NAME_CHARACTERS_MAX, "characters")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
