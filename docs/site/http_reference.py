"""The page of the HTTP API, from spec/openapi.yaml."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from release.staging import ROOT

METHODS = ("get", "post", "put", "patch", "delete")
Node = Mapping[str, Any]


class Reference:
    """Writes the description of one OpenAPI document as Markdown."""

    def __init__(self, document: Node) -> None:
        self._document = document

    def page(self) -> str:
        """The whole page: an operation a section, grouped by tag; then the schemas."""
        lines = ["# HTTP API", "", self._document["info"]["description"], ""]
        lines += [
            "The same for machines: [openapi.yaml](../spec/openapi.yaml). The rules: [spec/http](../spec/http.md).",
            "",
        ]
        for tag in self._document["tags"]:
            lines += [f"## {tag['name'].capitalize()}", "", tag.get("description", ""), ""]
            for path, methods in self._document["paths"].items():
                for method in METHODS:
                    operation = methods.get(method)
                    if operation and tag["name"] in operation["tags"]:
                        lines += self._operation(path, method, methods, operation)
        lines += ["## Schemas", ""]
        for name, schema in self._document["components"]["schemas"].items():
            lines += self._schema(name, schema)
        return "\n".join(lines) + "\n"

    def _operation(self, path: str, method: str, methods: Node, operation: Node) -> Iterator[str]:
        yield from (f"### `{method.upper()} {path}`", "", operation["summary"], "")
        if "description" in operation:
            yield from (operation["description"], "")
        schemes = [name for one in operation["security"] for name in one]
        yield from (f"Credential: {', '.join(f'`{name}`' for name in schemes) or 'none'}", "")
        parameters = [self._resolve(one) for one in (*methods.get("parameters", ()), *operation.get("parameters", ()))]
        if parameters:
            yield from ("| parameter | in | required | meaning |", "| --- | --- | --- | --- |")
            for one in parameters:
                required = "yes" if one.get("required") else ""
                yield f"| `{one['name']}` | {one['in']} | {required} | {cell(one.get('description', ''))} |"
            yield ""
        if "requestBody" in operation:
            for kind, content in self._resolve(operation["requestBody"])["content"].items():
                yield from (f"Body: {self._type(content['schema'])}, `{kind}`", "")
        yield from ("| status | meaning | body |", "| --- | --- | --- |")
        for status, response in operation["responses"].items():
            resolved = self._resolve(response)
            content = resolved.get("content", {})
            shown: Node = content.get("application/json") or next(iter(content.values()), {})
            body = self._type(shown["schema"]) if "schema" in shown else ""
            yield f"| {status} | {cell(resolved['description'])} | {body} |"
        yield ""

    def _schema(self, name: str, schema: Node) -> Iterator[str]:
        yield from (f"### {name}", "")
        if "description" in schema:
            yield from (schema["description"], "")
        if "properties" in schema:
            yield from ("| field | type | required | meaning |", "| --- | --- | --- | --- |")
            for field, one in schema["properties"].items():
                required = "yes" if field in schema.get("required", ()) else ""
                yield f"| `{field}` | {self._type(one)} | {required} | {cell(one.get('description', ''))} |"
            yield ""
        else:
            limits = {key: value for key, value in schema.items() if key not in ("description", "examples", "example")}
            yield from ("```json", json.dumps(limits, indent=2), "```", "")

    def _resolve(self, node: Node) -> Node:
        while "$ref" in node:
            found: Any = self._document
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            node = found
        return node

    def _type(self, schema: Node) -> str:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        for word in ("oneOf", "anyOf", "allOf"):
            if word in schema:
                return " or ".join(self._type(one) for one in schema[word])
        if schema.get("type") == "array":
            return f"list of {self._type(schema['items'])}"
        kind = schema.get("type", "any")
        return " or ".join(kind) if isinstance(kind, list) else str(kind)


def cell(text: str) -> str:
    """A text as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def http_page() -> str:
    """The Markdown of the page."""
    return Reference(yaml.safe_load((ROOT / "spec/openapi.yaml").read_text())).page()
