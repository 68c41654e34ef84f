"""What the code never does, read from its syntax trees."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for room in ("grpo_pipeline", "tasks", "flows", "benchmarks") for path in (ROOT / room).rglob("*.py")
)

UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
LOADERS = {"torch.load", "torch.jit.load", "np.load", "numpy.load", "torch.hub.load"}


def findings(source: str, where: str = "code") -> list[str]:
    """Every forbidden thing in a module's source."""
    found = []
    for node in ast.walk(ast.parse(source)):
        place = f"{where}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [f"{place}: imports {name}" for name in names if name.split(".")[0] in UNPICKLERS]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in FORBIDDEN_CALLS:
            found.append(f"{place}: calls {name}")
        safe = name == "torch.load" and is_true(given.get("weights_only"))
        if name in LOADERS and not safe:
            found.append(f"{place}: {name} may unpickle")
        if is_true(given.get("trust_remote_code")):
            found.append(f"{place}: trust_remote_code is on whatever the user says")
        if is_true(given.get("shell")):
            found.append(f"{place}: {name} through a shell")
        model = name.endswith("from_pretrained") and ("Model" in name or "auto_class" in name)
        if model and not (is_true(given.get("use_safetensors")) or any(key is None for key in given)):
            found.append(f"{place}: {name} without use_safetensors=True")
    return found


def is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled_or_executed(path):
    assert findings(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "import torch\ntorch.load('x')",
        "torch.load('x', weights_only=False)",
        "eval(text)",
        "np.load(path, allow_pickle=True)",
        "AutoModelForCausalLM.from_pretrained(folder)",
        "AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, trust_remote_code=True)",
        "subprocess.run(command, shell=True)",
        "yaml.load(text)",
    ],
)
def test_the_scan_finds_what_it_looks_for(source):
    assert len(findings(source)) == 1


def test_the_scan_lets_the_rest_pass():
    assert findings("torch.load('x', weights_only=True)\nmodel.eval()\nload_file(path)\nre.compile('x')") == []
