"""Write the server's packaged copy of openapi.yaml: `python spec/publish.py`, after each change of it.

The server answers `/openapi.json` from that copy, so that it needs no YAML; a test compares the two.
"""

import json
from pathlib import Path

import yaml

SPEC = Path(__file__).resolve().parent
PACKAGED = SPEC.parent / "server/src/volcano_locks_server/http/openapi.json"

if __name__ == "__main__":
    document = yaml.safe_load((SPEC / "openapi.yaml").read_text(encoding="utf-8"))
    PACKAGED.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
