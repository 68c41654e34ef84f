"""Own cases by kind, both ways of writing them."""

import pytest
from cases import ANSWERS, SOLUTIONS

from grpo_pipeline.answers import check


def flat(cases):
    return [pytest.param(*row, id=f"{kind}-{k}") for kind, rows in cases.items() for k, row in enumerate(rows)]


@pytest.mark.parametrize(("gold", "answer", "expected"), flat(ANSWERS))
def test_answers(gold, answer, expected):
    assert (check(gold, answer, "answer").verdict == "correct") is expected


@pytest.mark.parametrize(("gold", "solution", "expected"), flat(SOLUTIONS))
def test_solutions(gold, solution, expected):
    assert (check(gold, solution, "solution").verdict == "correct") is expected
