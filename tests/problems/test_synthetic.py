"""Generated problems: seeded, distinct, disjoint from the demonstrations, and right."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.problems.synthetic import LARGEST_VALUE, SMALLEST_VALUE, generate_problems, pool_of
from grpo_pipeline.problems.wording import DAYS, MONTHS, WORDINGS

OPERATOR_OF = {w.key: w.operator for w in WORDINGS}


def ids(rows):
    return [problem_id(r["question"], r["gold_answer"]) for r in rows]


def test_same_seed_same_rows_and_another_seed_others():
    assert generate_problems(20, 5) == generate_problems(20, 5)
    assert generate_problems(20, 5)[:7] == generate_problems(7, 5)
    assert not set(ids(generate_problems(50, 5))) & set(ids(generate_problems(50, 6)))


def test_no_duplicates_even_where_the_space_is_small():
    rows = generate_problems(2000, 0, min_steps=1, max_steps=1)
    assert len(set(ids(rows))) == 2000


def test_the_pools_share_no_problem_and_three_in_four_are_in_the_default():
    assert {pool_of(i) for i in ids(generate_problems(200, 1))} == {"default"}
    assert {pool_of(i) for i in ids(generate_problems(200, 1, pool="demonstrations"))} == {"demonstrations"}
    assert [pool_of(f"000{digit}") for digit in "048c"] == ["demonstrations"] * 4
    assert {pool_of(f"000{digit}") for digit in "1235679abdef"} == {"default"}


@settings(max_examples=30, deadline=None)
@given(st.integers(), st.integers(1, 6), st.integers(0, 5))
def test_meta_solution_and_answer_agree(seed, min_steps, more):
    for row in generate_problems(5, seed, min_steps, min_steps + more):
        state = json.loads(row["meta"])
        value, lines = state["start"], []
        for operation in state["operations"]:
            assert OPERATOR_OF[operation["wording"]] == operation["operator"]
            line = f"{value} {operation['operator']} {operation['operand']}"
            assert eval(line) == operation["result"]  # an independent calculator
            lines.append(f"{operation['time']}: {line} = {operation['result']}")
            value = operation["result"]
            assert SMALLEST_VALUE <= value <= LARGEST_VALUE
        assert min_steps <= len(lines) <= min_steps + more
        assert row["gold_answer"] == str(value) == str(state["answer"])
        assert row["gold_solution"].splitlines() == [*lines, f"The answer is {value}."]
        assert str(state["start"]) in row["question"]


def test_every_event_has_a_time_of_its_own_and_they_follow_each_other():
    for row in generate_problems(100, 2, 2, 12):
        times = [o["time"] for o in json.loads(row["meta"])["operations"]]
        order = DAYS if times[0] in DAYS else MONTHS
        places = [order.index(time) for time in times]
        assert len(set(places)) == len(places)
        assert all((b - a) % len(order) == 1 for a, b in pairwise(places))
        assert [row["question"].count(f" {time}, ") for time in times] == [1] * len(times)


def test_every_wording_is_told():
    told = {o["wording"] for r in generate_problems(300, 3) for o in json.loads(r["meta"])["operations"]}
    assert told == set(OPERATOR_OF)


@pytest.mark.parametrize(("count", "low", "high"), [(-1, 2, 4), (1, 0, 4), (1, 3, 2), (1, 2, 13)])
def test_impossible_arguments_are_refused(count, low, high):
    with pytest.raises(ValueError, match="not"):
        generate_problems(count, 0, low, high)


def test_an_exhausted_space_is_an_error_not_a_hang(monkeypatch):
    monkeypatch.setattr("grpo_pipeline.problems.synthetic._MAX_REFUSALS_IN_A_ROW", 50)
    monkeypatch.setattr("grpo_pipeline.problems.synthetic.START_VALUES", (3, 3))
    monkeypatch.setattr("grpo_pipeline.problems.synthetic.PEOPLE", ())
    monkeypatch.setattr(
        "grpo_pipeline.problems.synthetic._draw_problem",
        lambda rng, n: {"question": f"Q{rng.randint(0, 3)}", "gold_answer": "1"},
    )
    with pytest.raises(ValueError, match="allow more steps"):
        generate_problems(5, 0, 1, 1)
