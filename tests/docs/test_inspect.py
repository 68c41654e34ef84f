"""Every query of docs/inspect.md is run on the miniature run, and its answer is the one counted by hand."""

import re
from pathlib import Path

import polars as pl
import pytest

from tests.small_run import make_run

PAGE = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
QUERIES = {title: BLOCK.findall(body) for title, body in SECTION.findall(PAGE)}

# Two rounds of three problems, each with a right and a wrong solution of three steps; the wrong one has 3, 1 and 0
# correct of 4 completions, the right one 3, 4, and its outcome. One held-out problem.
EXPECTED = {
    "Hardest problems": {"solutions": [4] * 3, "solved": [0.5] * 3},
    "Problems that teach a policy nothing": {"problems": [3], "all right": [0], "all wrong": [0]},
    "Steps where hard and soft label disagree": {"step_index": [1] * 6, "n_correct": [1] * 6, "soft": [0.25] * 6},
    "Labels by completer": {"step_index": [0, 1] * 2, "completions": [24] * 4, "correct": [0.75, 0.625] * 2},
    "Labels by position": {"steps": [12] * 3, "good": [1.0, 1.0, 0.5], "soft": [0.75, 0.625, 0.5]},
    # 4 completions of 10 to 13 tokens for 2 of 3 steps.
    "Cost of a label": {
        "labelled steps": [18, 18],
        "completions a step": pytest.approx([48 / 18] * 2),
        "tokens a step": pytest.approx([12 * 46 / 18] * 2),
    },
    "Replay composition": {
        "training set of round": [0, 1, 1],
        "round": [0, 0, 1],
        "is_replay": [False, True, False],
        "rows": [6, 2, 6],
    },
    "Where solutions go wrong": {"share": [1.0], "solutions": [6]},
    "Wrong solutions that the reward model likes best": {
        "minimum": pytest.approx([0.268941] * 2, abs=1e-5),
        "answer": ["6", "6"],
    },
    "Scores of right and wrong solutions by round": {
        "verdict": ["correct", "wrong"] * 2,
        "median": pytest.approx([0.880797, 0.5] * 2, abs=1e-5),
        "steps": [3] * 4,
    },
    "Length by verdict": {"solutions": [3] * 4, "cut off": [0.0] * 4},
    # Both solutions of a problem start alike, and of the odd one (2 + 1) also go on alike.
    "Prefixes that solutions share": {"step_index": [0, 1, 2], "prefixes": [3, 5, 6], "steps": [6, 6, 6]},
    "A solution with all that is known of it": {"step_index": [0, 1, 2]},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "run"
    make_run(folder)
    return folder


def test_every_query_has_an_expected_answer():
    assert list(QUERIES) == list(EXPECTED)
    assert all(len(blocks) == 1 for blocks in QUERIES.values())
    assert len(QUERIES) >= 12


@pytest.mark.parametrize("title", QUERIES)
def test_query(title, run):
    opening = BLOCK.findall(PAGE)[0]
    assert '"runs/quickstart"' in opening
    names = {}
    exec(opening.replace('"runs/quickstart"', repr(str(run))) + QUERIES[title][0], names)  # noqa: S102
    result = names["result"]
    assert isinstance(result, pl.DataFrame)
    assert {column: result[column].to_list() for column in EXPECTED[title]} == EXPECTED[title]
