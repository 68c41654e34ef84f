"""The documentation builds strictly, and its reference knows every key, column and command."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pydantic import BaseModel

from flows.cli import app
from grpo_pipeline.config import RunConfig
from grpo_pipeline.schemas import TABLES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages():
    sys.path.insert(0, str(ROOT / "docs" / "_site"))
    import reference

    return {name: make() for name, make in reference.PAGES.items()}


def keys(section):
    for name, field in section.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation)


def test_the_reference_is_complete(pages):
    config = pages["config"]
    assert [key for key in keys(RunConfig) if f"`{key}`" not in config and f".{key}`" not in config] == []
    for table in TABLES.values():
        section = pages["tables"].split(f"## `{table.name}`\n")[1].split("\n## ")[0]
        assert [column for column in table.schema.names if f"| `{column}` |" not in section] == []
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert [name for name in names if f"## `{name}`" not in pages["commands"]] == []


def test_defaults_and_bounds_are_the_codes(pages):
    lines = {line.split(" | ")[0]: line for line in pages["config"].split("\n## `replay`")[1].split("\n")}
    assert lines["| `fraction`"].startswith("| `fraction` | float \u2265 0, < 1 | `0.1` | Share of historical rows")
    assert "| `count` | int > 0 or null | `1024` |" in pages["config"]


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install -e '.[docs]'")
def test_it_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    page = (tmp_path / "site" / "reference" / "tables" / "index.html").read_text(encoding="utf-8")
    assert "label_source" in page
    # A link to a file of the repository is text on the site.
    extend = (tmp_path / "site" / "extend" / "index.html").read_text(encoding="utf-8")
    assert "<code>problems/readers.py</code>" in extend
