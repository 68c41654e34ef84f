"""One place turns a question into token ids."""

import pytest

from grpo_pipeline.config import PromptConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.prompts import PromptBuilder, build_prompt
from tests.labelling.scripted import CharTokenizer

EXAMPLES = [
    {"question": "1+1?", "gold_solution": " It is 2.\n"},
    {"question": "no solution", "gold_solution": None},
    {"question": "2+2?", "gold_solution": "It is 4."},
    {"question": "3+3?", "gold_solution": "It is 6."},
]


class BosTokenizer(CharTokenizer):
    """Adds a BOS (token 1) of its own, and has a chat template."""

    chat_template = "yes"

    def encode(self, text, *, add_special_tokens=True):
        return [1] * add_special_tokens + super().encode(text)

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt):
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def text_of(builder, question):
    return CharTokenizer().decode(builder.encode(question))


def test_template_alone():
    assert text_of(PromptBuilder(CharTokenizer(), PromptConfig()), "how {many}?") == "how {many}?\n"


def test_examples_stand_before_the_question():
    config = PromptConfig(template="Q: {question}\nA: ", examples=2)
    builder = PromptBuilder(CharTokenizer(), config, EXAMPLES)
    assert text_of(builder, "5+5?") == "Q: 1+1?\nA: It is 2.\n\nQ: 2+2?\nA: It is 4.\n\nQ: 5+5?\nA: "


def test_a_question_is_never_shown_its_own_solution():
    config = PromptConfig(template="Q: {question}\nA: ", examples=2)
    builder = PromptBuilder(CharTokenizer(), config, EXAMPLES)
    assert text_of(builder, "1+1?") == "Q: 2+2?\nA: It is 4.\n\nQ: 3+3?\nA: It is 6.\n\nQ: 1+1?\nA: "


def test_special_tokens_are_the_tokenizers_own():
    assert PromptBuilder(BosTokenizer(), PromptConfig()).encode("a") == [1, ord("a"), ord("\n")]


def test_chat_gives_turns_and_no_second_bos():
    config = PromptConfig(chat=True, system="Be right.", examples=1)
    ids = PromptBuilder(BosTokenizer(), config, EXAMPLES).encode("5+5?")
    expected = "<system>Be right.<user>1+1?<assistant>It is 2.<user>5+5?<assistant>"
    assert ids == [ord(c) for c in expected]


def test_too_few_examples_and_no_chat_template_are_refused():
    with pytest.raises(UserError, match="only 3 training problems"):
        PromptBuilder(CharTokenizer(), PromptConfig(examples=4), EXAMPLES)
    with pytest.raises(UserError, match="chat template"):
        PromptBuilder(CharTokenizer(), PromptConfig(chat=True))


def test_default_is_the_question_and_a_line_break():
    assert build_prompt("How many?") == "How many?\n"


def test_build_prompt_puts_examples_before_the_question():
    prompt = build_prompt("Q2", "Q: {question}\nA: ", [("Q1", "1 + 1 = 2\nThe answer is 2.")])
    assert prompt == "Q: Q1\nA: 1 + 1 = 2\nThe answer is 2.\n\nQ: Q2\nA: "


def test_braces_in_a_question_are_left_alone():
    assert build_prompt("What is {question} or {x}?") == "What is {question} or {x}?\n"


@pytest.mark.parametrize("template", ["no place", "{question} {question}"])
def test_a_template_without_one_place_is_refused(template):
    with pytest.raises(ValueError, match="exactly once"):
        build_prompt("Q", template)
