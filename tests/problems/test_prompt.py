"""Prompts are the template filled in, nothing more."""

import pytest

from grpo_pipeline.problems.prompt import build_prompt


def test_default_is_the_question_and_a_line_break():
    assert build_prompt("How many?") == "How many?\n"


def test_examples_stand_before_the_question():
    prompt = build_prompt("Q2", "Q: {question}\nA: ", [("Q1", "1 + 1 = 2\nThe answer is 2.")])
    assert prompt == "Q: Q1\nA: 1 + 1 = 2\nThe answer is 2.\n\nQ: Q2\nA: "


def test_braces_in_a_question_are_left_alone():
    assert build_prompt("What is {question} or {x}?") == "What is {question} or {x}?\n"


@pytest.mark.parametrize("template", ["no place", "{question} {question}"])
def test_a_template_without_one_place_is_refused(template):
    with pytest.raises(ValueError, match="exactly once"):
        build_prompt("Q", template)
