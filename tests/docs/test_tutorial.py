"""The commands of docs/tutorial.md run as they stand, and give the counts that the page shows."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_pipeline.problems.synthetic import generate_problems

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PROBLEMS, SEED = 60, 2026


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


@pytest.mark.slow
def test_the_tutorial(tmp_path):
    lines = [
        json.dumps({"prompt": row["question"], "target": row["gold_answer"]})
        for row in generate_problems(PROBLEMS, SEED, 2, 4)
    ]
    assert blocks("json")[0].splitlines() == lines[:2]
    (tmp_path / "my_problems.jsonl").write_text("\n".join(lines))
    (tmp_path / "mine.toml").write_text(blocks("toml")[0])
    commands = blocks("bash")
    assert len(commands) == 6
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    printed = []
    for command in commands:
        assert command.startswith("grpo-pipeline ")
        line = f"{sys.executable} -m flows.cli {command.removeprefix('grpo-pipeline ')}"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    shown = blocks("")
    # Counts are the same everywhere; times are the machine's, and samples may differ between processors.
    assert "solutions            \u2502 96" in printed[0]
    assert "solutions            \u2502 96" in shown[0]
    assert "rollout " in printed[1]
    assert "false zeros" in printed[2]
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert "my-steps: 96 rows" in printed[4]
    assert printed[4].count("would upload") == shown[3].count("would upload") == 4
    assert (tmp_path / "steps.jsonl").read_text(encoding="utf-8").count("\n") == 96
