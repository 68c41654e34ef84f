"""The import is light, and the common check loads no computer algebra."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_import_and_a_simple_check_load_nothing_heavy():
    code = (
        "import sys; from grpo_pipeline.answers import check\n"
        "assert check('5', 'so \\\\boxed{5}').verdict == 'correct'\n"
        "assert check('1/2', '0.5', 'answer').verdict == 'correct'\n"
        "heavy = ('torch', 'transformers', 'prefect', 'sympy', 'mpmath', 'numpy', 'rich')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
