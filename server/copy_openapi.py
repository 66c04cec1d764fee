"""Write spec/openapi.yaml into the package as JSON, which the server answers (OPS-4). Run after changing the spec."""

import json
from pathlib import Path

import yaml

HERE = Path(__file__).parent
SPEC = HERE.parent / "spec" / "openapi.yaml"
PACKAGED = HERE / "src" / "volcano_locks_server" / "http" / "openapi.json"

if __name__ == "__main__":
    wire = yaml.safe_load(SPEC.read_text(encoding="utf-8"))
    PACKAGED.write_text(json.dumps(wire, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
