"""The problem id depends on content alone, and on all of it."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.problems.identity import normalise_text, problem_id


def test_id_is_the_documented_hash():
    expected = hashlib.sha256(b'["What is 1 + 1?", "2"]').hexdigest()[:16]
    assert problem_id("What is 1 + 1?", "2") == expected


def test_white_space_and_unicode_form_do_not_matter():
    assert problem_id("What  is\n1 + 1? ", " 2") == problem_id("What is 1 + 1?", "2")
    assert problem_id("cafe\u0301", "2") == problem_id("caf\u00e9", "2")


def test_question_and_answer_cannot_run_together():
    assert problem_id("a b", "c") != problem_id("a", "b c")
    assert problem_id("a", "1") != problem_id("a", "2")


@given(st.text(), st.text())
def test_id_is_sixteen_hex_digits_and_stable_under_normalisation(question, answer):
    identifier = problem_id(question, answer)
    assert len(identifier) == 16
    assert set(identifier) <= set("0123456789abcdef")
    assert identifier == problem_id(normalise_text(question), normalise_text(answer))
