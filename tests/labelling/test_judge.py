"""The judge: what it reads, how its answers are read, and the vote, also through the server engine."""

from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pytest

from grpo_pipeline.config import SamplingConfig
from grpo_pipeline.engines.protocol import Sample
from grpo_pipeline.engines.server import ServerEngine
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.judge import NO_ERROR, judge_prompt, judge_solutions, majority, read_opinion
from grpo_pipeline.labelling.rules import Rule, relabel
from tests.engines.fake_server import FakeServer
from tests.labelling.scripted import EOS, CharTokenizer
from tests.labelling.test_label import RIGHT, label, make_world

SAMPLING = SamplingConfig(max_tokens=100)


@dataclass
class ScriptedJudge:
    """Answers that depend on the prompt; the votes of one prompt take turns."""

    answers: object
    max_model_len: int = 10_000
    model_id: str = "judge"
    tokenizer: CharTokenizer = field(default_factory=CharTokenizer)
    prompts: list = field(default_factory=list)

    def generate(self, requests, sampling, on_result=None):
        results = []
        for index, request in enumerate(requests):
            prompt = self.tokenizer.decode(request.prompt_token_ids)
            before = self.prompts.count(prompt)
            self.prompts += [prompt] * len(request.seeds)
            texts = self.answers(prompt)
            chosen = [texts[(before + vote) % len(texts)] for vote in range(len(request.seeds))]
            results.append([self._sample(text) for text in chosen])
            if on_result is not None:
                on_result(index, results[-1])
        return results

    def _sample(self, text):
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        return Sample(np.array(ids, np.int32), np.zeros(len(ids), np.float32), text, "stop")


def world():
    return make_world([(1, ["a", "b", "The answer is 1"], "stop"), (2, ["c", "d", "The answer is 9"], "stop")])


def by_question(**answers):
    """Answers by the name of the question, q1 or q2."""
    return lambda prompt: next(texts for name, texts in answers.items() if f"{name}=" in prompt)


def judge(engine, votes=3, world=None):
    world = world or globals()["world"]()
    return judge_solutions(world.problems, world.steps, engine, SAMPLING, votes=votes, seed=1)


def test_the_prompt_has_the_question_and_every_step_by_number():
    prompt = judge_prompt("How many?", ["first\n", "second"])
    assert "<problem>\nHow many?\n</problem>\n\n<step_0>\nfirst\n</step_0>\n<step_1>\nsecond\n</step_1>" in prompt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{1}", 1),
        (r"not \boxed{0} but \boxed{ 2 }.", 2),
        (r"all is well: \boxed{-1}", NO_ERROR),
        (r"\boxed{3}", None),
        (r"\boxed{-2}", None),
        (r"\boxed{two}", None),
        ("step 1", None),
    ],
)
def test_reading_an_answer_about_three_steps(text, expected):
    assert read_opinion(text, 3) == expected


def test_the_most_frequent_opinion_counts_and_a_tie_is_none():
    assert majority([1, 1, 0]) == 1
    assert majority([None, None, 0]) == 0
    assert majority([-1, -1, 2, None]) == NO_ERROR
    assert majority([0, 1]) is None
    assert majority([None]) is None


def test_steps_before_the_first_bad_one_are_good_and_later_ones_unknown():
    result = judge(ScriptedJudge(by_question(q1=[r"\boxed{-1}"], q2=[r"\boxed{1}", r"\boxed{1}", r"\boxed{0}"])))
    rows = result.judgements.sort("rollout_id", "step_index").select("rollout_id", "hard", "n_votes", "n_agree")
    assert rows.rows() == [
        ("p1r0", 1, 3, 3), ("p1r0", 1, 3, 3), ("p1r0", 1, 3, 3),
        ("p2r1", 1, 3, 2), ("p2r1", 0, 3, 2), ("p2r1", None, 3, 2),
    ]  # fmt: skip
    assert result.counts["solutions_judged"] == 2


def test_no_opinion_is_no_row_and_is_counted():
    result = judge(ScriptedJudge(by_question(q1=["who knows", "no idea"], q2=[r"\boxed{0}", r"\boxed{1}"])), votes=2)
    assert result.judgements.height == 0
    assert result.counts | {"tokens": 0} == {
        "solutions": 2, "solutions_judged": 0, "solutions_without_opinion": 2, "solutions_too_long": 0,
        "votes": 4, "votes_unreadable": 2, "tokens": 0,
    }  # fmt: skip


def test_a_solution_without_room_is_counted_not_cut():
    length = len(judge_prompt("q1=1?", ["a", "b", "The answer is 1"])) + 1
    engine = ScriptedJudge(lambda prompt: [r"\boxed{-1}"], max_model_len=length)
    assert judge(engine).counts["solutions_too_long"] == 2
    assert engine.prompts == []


def test_solutions_of_unknown_problems_are_refused():
    given = world()
    with pytest.raises(UserError, match="not in the problems table"):
        judge_solutions(given.problems.head(1), given.steps, ScriptedJudge(lambda p: [""]), SAMPLING, votes=1, seed=1)


def test_a_judge_behind_a_server_confirms_labels_by_consensus():
    """Solution 1 is good throughout by labels and judge; of solution 2 the judge calls another step bad."""
    given = world()
    labels = label(given, RIGHT).step_labels
    assert labels.sort("rollout_id", "step_index")["hard"].to_list() == [1, 1, 1, 1, 1, 0]
    engine = ScriptedJudge(by_question(q1=[r"\boxed{-1}"], q2=[r"\boxed{1}"]))
    with FakeServer(engine, "judge") as fake:
        server = ServerEngine(
            fake.url, "judge", CharTokenizer(), frozenset({EOS}), model_id="judge", max_model_len=10_000, concurrency=2
        )
        with server:
            judgements = judge(server, world=given).judgements
    found = relabel(labels, Rule("consensus"), judgements).sort("rollout_id", "step_index")
    assert found["hard"].to_list() == [1, 1, 1, None, None, None]
    assert found["second_opinion"].to_list() == [1, 1, 1, 1, 0, None]
    assert found.filter(pl.col("hard").is_null())["soft"].null_count() == 3
