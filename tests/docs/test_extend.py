"""The reward, the splitter and the reader of docs/extend.md are run as a user would run them."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from grpo_pipeline.config import ProblemsConfig, RewardConfig
from grpo_pipeline.labelling.steps import load_splitter
from grpo_pipeline.problems.loading import load_problems
from grpo_pipeline.rewards import reward_rollouts
from tests.small_run import make_problems, make_rollouts

PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```python\n# (my_\w+)\.py\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(autouse=True)
def on_the_path(tmp_path, monkeypatch):
    for name, code in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_each_is_short_and_its_name_stands_in_a_command():
    assert set(BLOCKS) == {"my_rewards", "my_steps", "my_problems"}
    for name, code in BLOCKS.items():
        assert len(code.splitlines()) < 20
        function = re.search(r"^def (\w+)", code, re.MULTILINE)[1]
        assert f"{name}:{function}" in PAGE


def test_the_reward():
    rollouts, checked = make_rollouts(make_problems().head(1), 0)
    texts = pl.Series("text", ["He has 3 apples.", "The answer is 3"])
    rewarded = reward_rollouts(
        rollouts.with_columns(texts), checked, RewardConfig(custom={"my_rewards:states_units": 0.2}), max_tokens=64
    )
    assert rewarded["reward_states_units"].to_list() == [1.0, 0.0]
    # The first is right by the checker too, the second is wrong.
    assert rewarded["outcome_reward"].to_list() == pytest.approx([1.2, 0.0])


def test_the_splitter():
    text = "Half of 48 is 24. Both are 72.\nThe answer is 72."
    ends = load_splitter("my_steps:sentences")(text)
    assert [text[a:b] for a, b in zip([0, *ends], ends, strict=False)] == [
        "Half of 48 is 24. ",
        "Both are 72.\n",
        "The answer is 72.",
    ]


def test_the_reader(tmp_path):
    exam = [
        {"stem": "How much is 2 + 2?", "options": ["3", "4"], "key": "B"},
        {"stem": "How much is 2 + 3?", "options": ["5", "6"], "key": "A"},
        {"stem": "Which one?", "options": ["1", "2"], "key": "E"},
    ]
    (tmp_path / "exam.jsonl").write_text("".join(json.dumps(row) + "\n" for row in exam))
    config = ProblemsConfig(
        source=str(tmp_path / "exam.jsonl"), reader="my_problems:multiple_choice", count=None, eval_count=1
    )
    loaded = load_problems(config, seed=0)
    assert sorted(loaded.frame["gold_answer"]) == ["4", "5"]
    assert loaded.counts["dropped_by_reader"] == 1
