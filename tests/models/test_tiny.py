"""The embedded model as it lies in data/tiny/: what everything else relies on."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_pipeline.models.demonstrations import HABITS, demonstrate
from grpo_pipeline.models.tiny import TinyRecipe, demonstration_texts, make_tiny
from grpo_pipeline.models.tiny_card import is_right, kind_of_error, measure, solve
from grpo_pipeline.problems.oracle import judge_steps
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.problems.wording import WORDINGS
from grpo_pipeline.prompts import build_prompt

TINY = Path(__file__).parents[2] / "data" / "tiny"

TWO_STEPS = json.dumps(
    {
        "start": 12,
        "answer": 16,
        "operations": [
            {"time": "Monday", "operator": "-", "operand": 4, "result": 8, "wording": "sell"},
            {"time": "Tuesday", "operator": "*", "operand": 2, "result": 16, "wording": "double"},
        ],
    }
)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


def test_shape_and_size(model):
    assert model.config.model_type == "llama"
    assert model.config.head_dim == 32
    assert model.config.hidden_size == 32 * model.config.num_attention_heads
    assert 0.3e6 <= sum(p.numel() for p in model.parameters()) <= 1.0e6
    assert sum(file.stat().st_size for file in TINY.iterdir()) <= 4e6


def test_special_tokens(model, tokenizer):
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    assert tokenizer.bos_token_id is None
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert len(tokenizer) == model.config.vocab_size


def test_encoding_adds_nothing_and_keeps_digits_apart(tokenizer):
    text = "Tom has 12 apples.\n12 + 5 = 17\nThe answer is 17."
    ids = tokenizer(text)["input_ids"]
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = [tokenizer.decode([i]) for i in ids]
    assert "".join(pieces) == text
    assert [p for p in pieces if any(c.isdigit() for c in p)] == list("12125171" + "7")


def test_a_line_break_is_always_a_token_of_its_own(tokenizer):
    row = generate_problems(1, 3)[0]
    ids = tokenizer.encode(build_prompt(row["question"]) + row["gold_solution"])
    line_break = tokenizer.encode("\n")
    assert len(line_break) == 1
    assert ids.count(line_break[0]) == 1 + row["gold_solution"].count("\n")
    assert not any("\n" in tokenizer.decode([i]) for i in set(ids) - set(line_break))


@settings(max_examples=100, deadline=None)
@given(text=st.text())
def test_tokenizer_is_lossless(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "  two  spaces .",
        "don't , he said !",
        "\t\r\n\n",
        "½ 数学 🙂 \u200d",
        "1,000.5 -3",
        " \n 7 \n",
        "\x00é",
    ],
)
def test_tokenizer_is_lossless_on_hard_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_mediocre_solver_whose_errors_are_habits(model, tokenizer):
    figures = measure(model, tokenizer, 200, seed=4321)
    assert 0.25 <= figures.accuracy <= 0.55
    habits = figures.errors.get("- done as +", 0) + figures.errors.get("* done as +", 0)
    assert habits > 0.8


def test_the_card_holds_the_measured_figures(model):
    card = (TINY / "README.md").read_text(encoding="utf-8")
    figures = json.loads((TINY / "figures.json").read_text(encoding="utf-8"))
    assert figures["problems"] >= 500
    assert 0.30 <= figures["accuracy"] <= 0.50
    assert f"{figures['accuracy']:.3f} ± {figures['accuracy_se']:.3f}" in card
    assert f"{figures['greedy']:.3f}" in card
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card


def test_solving_is_seeded_and_ends_with_the_end_token(model, tokenizer):
    prompts = [tokenizer.encode(build_prompt(r["question"])) for r in generate_problems(8, 9)]
    first = solve(model, tokenizer, prompts, temperature=1.0, seed=1)
    assert first == solve(model, tokenizer, prompts, temperature=1.0, seed=1)
    assert first != solve(model, tokenizer, prompts, temperature=1.0, seed=2)
    assert all(ids.index(tokenizer.eos_token_id) == len(ids) - 1 for ids in first)


def test_habits_name_wordings_that_are_not_additions():
    operators = {w.key: w.operator for w in WORDINGS}
    assert {operators[key] for key in HABITS} == {"-", "*"}


def test_demonstrations_by_hand(monkeypatch):
    monkeypatch.setattr("grpo_pipeline.models.demonstrations.HABITS", {"sell": 1.0})
    assert demonstrate(TWO_STEPS, random.Random(0)) == "Monday: 12 + 4 = 16\nTuesday: 16 * 2 = 32\nThe answer is 32."
    monkeypatch.setattr("grpo_pipeline.models.demonstrations.HABITS", {"double": 1.0})
    assert demonstrate(TWO_STEPS, random.Random(0)) == "Monday: 12 - 4 = 8\nTuesday: 8 + 2 = 10\nThe answer is 10."
    monkeypatch.setattr("grpo_pipeline.models.demonstrations.HABITS", {})
    lines = demonstrate(TWO_STEPS, random.Random(0)).splitlines()
    assert judge_steps(TWO_STEPS, lines) == [True, True, True]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Monday: 12 + 4 = 16\nTuesday: 16 * 2 = 32\nThe answer is 32.", "- done as +"),
        ("Monday: 12 - 4 = 8\nTuesday: 8 + 2 = 10\nThe answer is 10.", "* done as +"),
        ("Monday: 12 - 4 = 9\nThe answer is 9.", "wrong result"),
        ("Monday: 12 - 5 = 7\nThe answer is 7.", "wrong operand"),
        ("Monday: 12 - 4 = 8\nTuesday: 7 * 2 = 14", "wrong operand"),
        ("Monday: 12 - 4 = 8\nTuesday: 8 * 2 = 16\nThe answer is 61.", "answer line"),
        ("Monday: 12 - 4 = 8\nThe answer is 8.", "not an equation"),
        ("Monday: 12 - 4 = 8", "no answer"),
    ],
)
def test_kinds_of_error_by_hand(text, kind):
    assert kind_of_error(text, TWO_STEPS) == kind
    assert not is_right(text, "16")


def test_right_is_the_last_line():
    assert is_right("Monday: 12 - 4 = 8\nTuesday: 8 * 2 = 16\nThe answer is 16.", "16")
    assert not is_right("The answer is 16.\nor not", "16")
    assert not is_right("The answer is 116.", "16")


def test_no_problem_of_a_run_is_in_the_demonstrations():
    shown = {prompt for prompt, _ in demonstration_texts(TinyRecipe(short=2000, long=50), seed=0)}
    # Two steps and the demonstrations' own seed: the likeliest place for an overlap.
    assert len(shown) == 2050
    assert not shown & {build_prompt(r["question"]) for r in generate_problems(2000, 0, 1, 2)}


@pytest.mark.slow
def test_the_recipe_runs_and_is_seeded(tmp_path):
    recipe = TinyRecipe(
        hidden=32,
        layers=1,
        heads=1,
        intermediate=32,
        short=200,
        long=10,
        drills=3,
        steps=5,
        batch=8,
        warmup=2,
    )
    for name in "ab":
        make_tiny(tmp_path / name, seed=3, recipe=recipe, measured=4)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()}
    assert len(modes) == 1, "the weights are not readable as the other files are"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "a").config.head_dim == 32
    assert "The embedded model" in (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
