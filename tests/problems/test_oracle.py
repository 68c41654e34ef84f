"""The oracle against verdicts worked out by hand."""

import json

import pytest

from grpo_pipeline.problems.oracle import judge_steps
from grpo_pipeline.problems.synthetic import generate_problems

# 12 + 5 = 17, 17 - 4 = 13, 13 * 3 = 39
META = json.dumps(
    {
        "start": 12,
        "answer": 39,
        "operations": [
            {"operator": "+", "operand": 5, "result": 17, "wording": "buy"},
            {"operator": "-", "operand": 4, "result": 13, "wording": "lose"},
            {"operator": "*", "operand": 3, "result": 39, "wording": "triple"},
        ],
    }
)
T, F = True, False

CASES = {
    "all right": (["12 + 5 = 17\n", "17 - 4 = 13\n", "13 * 3 = 39\n", "The answer is 39."], [T, T, T, T]),
    "commuted": (["5 + 12 = 17", "17 - 4 = 13", "3 * 13 = 39", "The answer is 39."], [T, T, T, T]),
    "commuted subtraction": (["12 + 5 = 17", "4 - 17 = 13"], [T, F]),
    "wrong operation": (["12 + 5 = 17", "17 + 4 = 21", "21 * 3 = 63", "The answer is 63."], [T, F, F, F]),
    "wrong operand": (["12 + 6 = 18", "18 - 4 = 14"], [F, F]),
    "wrong result": (["12 + 5 = 18", "18 - 4 = 14"], [F, F]),
    "wrong start": (["13 + 5 = 18"], [F]),
    "two errors cancel": (["12 + 5 = 18", "17 - 4 = 13", "13 * 3 = 39", "The answer is 39."], [F, F, F, F]),
    "right answer after wrong step": (["12 + 5 = 17", "17 + 4 = 21", "The answer is 39."], [T, F, F]),
    "wrong answer after right steps": (
        ["12 + 5 = 17", "17 - 4 = 13", "13 * 3 = 39", "The answer is 13."],
        [T, T, T, F],
    ),
    "stops too early": (["12 + 5 = 17", "The answer is 17."], [T, F]),
    "jumps to the right answer": (["12 + 5 = 17", "The answer is 39."], [T, T]),
    "skipped operation": (["17 - 4 = 13"], [F]),
    "repeated operation": (["12 + 5 = 17", "12 + 5 = 17"], [T, F]),
    "one operation too many": (["12 + 5 = 17", "17 - 4 = 13", "13 * 3 = 39", "39 + 1 = 40"], [T, T, T, F]),
    "two operations in a line": (["12 + 5 = 17, then 17 - 4 = 13", "13 * 3 = 39"], [T, T]),
    "second in the line is wrong": (["12 + 5 = 17, then 17 - 4 = 14"], [F]),
    "words around": (["Buying 5 makes 12+5=17 in all.", "Then 17−4 = 13.", "13 × 3 = 39!"], [T, T, T]),
    "a line that claims nothing": (
        ["Let us see.", "12 + 5 = 17", "\n", "17 + 4 = 21", "\n"],
        [T, T, T, F, F],
    ),
    "cannot be read": (["12 + 5", "12 + 5 = 17"], [F, F]),
    "chained equals": (["12 + 5 = 17 - 4 = 13"], [F]),
    "three terms": (["12 + 5 - 4 = 13"], [F]),
    "decimals": (["12 + 5 = 17.0", "17 - 4 = 13.5"], [T, F]),
    "digits run together": (["112 + 5 = 17"], [F]),
    "no steps": ([], []),
}


@pytest.mark.parametrize("name", CASES)
def test_hand_worked(name):
    steps, expected = CASES[name]
    assert judge_steps(META, steps) == expected


def test_division():
    meta = json.dumps(
        {
            "start": 12,
            "answer": 4,
            "operations": [{"operator": "/", "operand": 3, "result": 4, "wording": "share"}],
        }
    )
    assert judge_steps(meta, ["12 / 3 = 4", "The answer is: 4."]) == [T, T]
    assert judge_steps(meta, ["12 ÷ 3 = 4"]) == [T]
    assert judge_steps(meta, ["3 / 12 = 4"]) == [F]


def test_gold_solutions_are_right_and_stop_being_so_at_a_changed_line():
    for row in generate_problems(100, 11, 2, 10):
        lines = row["gold_solution"].splitlines()
        assert judge_steps(row["meta"], lines) == [T] * len(lines)
        spoilt = [*lines[:1], lines[1] + "0", *lines[2:]]  # a result (or answer) ten times too large
        assert judge_steps(row["meta"], spoilt) == [T] + [F] * (len(lines) - 1)


@pytest.mark.parametrize("meta", ["", "not json", "[]", "{}", '{"start": 1}', "null"])
def test_other_meta_is_refused(meta):
    with pytest.raises(ValueError, match="generated problem's meta"):
        judge_steps(meta, ["1 + 1 = 2"])
