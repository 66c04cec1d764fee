"""The pages of docs/reference are what their generator writes from the code and the specification."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def test_the_reference_pages_are_up_to_date(root: Path) -> None:
    folder = root / "docs/reference"
    spec = spec_from_file_location("generate", folder / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generator = module_from_spec(spec)
    spec.loader.exec_module(generator)
    for name, text in generator.pages().items():
        assert (folder / name).read_text("utf-8") == text, f"{name}: run python docs/reference/generate.py"
