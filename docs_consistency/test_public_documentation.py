"""What an editor shows about a public call: an example, and no id of a rule, which its reader cannot look up there."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

RULE_ID = re.compile(r"\b(?:LEASE|WAIT|HTTP|EVENT|LIST|QUOTA|ADMIN|OPS|SDK|CLI)-\d+|\bcases? \d+")
CALLS = {
    *("acquire", "renew", "release", "get", "view", "list", "watch", "lead", "exclusive", "with_lock", "force_release"),
}
PYTHON = {"sync.client": ("Client", "Locks"), "asyncio.client": ("AsyncClient", "AsyncLocks")}
PUBLIC_MODULES = ("volcano_locks", "volcano_locks.testing")
JAVASCRIPT = (
    *(
        "client",
        "clock",
        "errors",
        "locks",
        "log",
        "options",
        "throwing_locks",
        "features/exclusive",
        "features/leader",
    ),
    *("features/watch", "holding/guard", "protocol/lease", "protocol/lock_view", "testing/faulty_transport"),
)
RUBY = (
    *("client", "errors", "features/exclusive", "features/leadership", "holding/guard", "protocol/lease"),
    *("protocol/lock_view", "testing/faulty_transport"),
)
# A comment that is followed by something, and the first word of that.
JAVASCRIPT_COMMENT = re.compile(
    r"/\*\*((?:(?!\*/).)*)\*/\n *(?!export function|export const)(?:(?:export|readonly|async|class|interface) )*(\w+)",
    re.DOTALL,
)
RUBY_COMMENT = re.compile(r"((?:^ *#.*\n)+) *(?:def |class |module |attr_reader )(?:self\.|:)?(\w+)", re.MULTILINE)


def python_docstrings() -> dict[str, str]:
    """The docstrings of the public classes and of their public methods."""
    classes = [
        getattr(module, name)
        for module in map(importlib.import_module, PUBLIC_MODULES)
        for name in module.__all__
        if inspect.isclass(getattr(module, name))
    ]
    for module, names in PYTHON.items():
        classes += [getattr(importlib.import_module(f"volcano_locks.{module}"), name) for name in names]
    found = {}
    for one in classes:
        found[one.__qualname__] = inspect.cleandoc(one.__doc__ or "")
        for name, member in vars(one).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if not name.startswith("_") and callable(function):
                found[f"{one.__qualname__}.{name}"] = inspect.cleandoc(function.__doc__ or "")
    return found


def comments(root: Path, language: str) -> dict[str, str]:
    """The comments that document something in the files of the public API, by file and name."""
    folder, suffix, files, pattern = {
        "javascript": ("sdks/javascript/src", "ts", JAVASCRIPT, JAVASCRIPT_COMMENT),
        "ruby": ("sdks/ruby/lib/volcano_locks", "rb", RUBY, RUBY_COMMENT),
    }[language]
    found = {}
    for file in files:
        text = (root / folder / f"{file}.{suffix}").read_text()
        start = text.index("*/") if language == "javascript" else 0  # the first comment is about the file
        found |= {f"{file}.{name}": comment for comment, name in pattern.findall(text[start:])}
    return found


@pytest.mark.parametrize("language", ["python", "javascript", "ruby"])
def test_no_public_documentation_names_a_rule(root: Path, language: str) -> None:
    documented = python_docstrings() if language == "python" else comments(root, language)
    assert len(documented) > 20
    assert {name: ids for name, text in documented.items() if (ids := RULE_ID.findall(text))} == {}


@pytest.mark.parametrize("owner", ["Locks", "AsyncLocks"])
def test_each_python_call_has_an_example(owner: str) -> None:
    documented = python_docstrings()
    example = re.compile(r"^(?: {4}|```python\n).*locks\.", re.MULTILINE)
    assert {name for name in CALLS if not example.search(documented[f"{owner}.{name}"])} == set()


def test_each_javascript_call_has_an_example(root: Path) -> None:
    documented = comments(root, "javascript")
    names = {re.sub(r"_(\w)", lambda at: at[1].upper(), name) for name in CALLS} | {"throwOnError"}
    assert {name for name in names if "@example" not in documented[f"locks.{name}"]} == set()


def test_each_ruby_call_has_an_example(root: Path) -> None:
    documented = comments(root, "ruby")
    documented["client.exclusive"] = documented["features/exclusive.exclusive"]
    assert {name for name in CALLS if "@example" not in documented[f"client.{name}"]} == set()
