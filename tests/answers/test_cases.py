"""Own cases by kind (cases.jsonl), written by hand from the conventions in docs/answers.md.

The file is also an input of `grpo-pipeline check`.
"""

import json
from pathlib import Path

import pytest

from grpo_pipeline.answers import check

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{k}-{case['kind']}") for k, case in enumerate(CASES)])
def test_case(case):
    assert (check(case["gold"], case["pred"], case["mode"]).verdict == "correct") is case["expected"]
