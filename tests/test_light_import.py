"""The library stays light to import, and its layers point one way."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "vllm", "prefect", "datasets", "accelerate", "matplotlib")


def imports_of(path):
    """(module, line) of every import in a file, wherever it stands; relative ones resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join([*base, node.module or ""]).strip("."), node.lineno


def importers(layer, *modules):
    return sorted(
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / layer).rglob("*.py")
        for module, line in imports_of(path)
        if module.split(".")[0] in modules
    )


LIGHT = [
    "config",
    "schemas",
    "tables",
    "progress",
    "store",
    "store.verify",
    "store.gc",
    "store.lineage",
    "problems.loading",
]


def test_imports_stay_light():
    program = f"""
import importlib, sys
for module in ["grpo_pipeline", *("grpo_pipeline." + name for name in {LIGHT})]:
    importlib.import_module(module)
    print(module, [name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"grpo_pipeline{name} []" for name in ["", *(f".{name}" for name in LIGHT)]]


def test_the_library_never_imports_prefect_or_the_layers_above():
    assert importers("grpo_pipeline", "prefect", "prefect_ray", "tasks", "flows") == []


def test_tasks_never_import_flows():
    assert importers("tasks", "flows") == []


def test_only_one_module_imports_vllm():
    assert len({place.split(":")[0] for place in importers("grpo_pipeline", "vllm")}) <= 1
    assert importers("tasks", "vllm") == []
    assert importers("flows", "vllm") == []


def test_the_scan_sees_every_kind_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    package = tmp_path / "grpo_pipeline" / "deep"
    package.mkdir(parents=True)
    (package / "x.py").write_text("def f():\n    import prefect.flows\nfrom ...flows import y\nfrom flows.z import w\n")
    assert importers("grpo_pipeline", "prefect", "flows") == [f"grpo_pipeline/deep/x.py:{n}" for n in (2, 3, 4)]
