"""label_steps: what each kind of end and draw means, counted by hand."""

import numpy as np
import polars as pl
import pytest

from grpo_pipeline.config import LabellingConfig, SamplingConfig, parse_config
from grpo_pipeline.engines.protocol import Sample
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.receipt import receipt_rates, render_receipt
from grpo_pipeline.rollouts import check_rollouts
from grpo_pipeline.schemas import LABEL_SOURCES
from grpo_pipeline.tables import empty
from tests.labelling.scripted import EOS, ScriptedEngine, check_many, make_world, random_chances, random_world

SAMPLING = SamplingConfig(max_tokens=400)
RIGHT, WRONG, MISSING = (1.0, 0, 0, 0), (0.0, 0, 0, 0), (0.0, 1.0, 0, 0)
TRUNCATED, TIMEOUT = (0.0, 0, 1.0, 0), (0.0, 0, 0, 1.0)


def label(world, chances, engine=None, sampling=SAMPLING, **config):
    config = LabellingConfig(**{"completions": 3} | config)
    engine = engine or ScriptedEngine(lambda prompt: chances)
    return label_steps(*world.label_args(), engine, config, sampling, seed=1, checker=check_many)


def one(*lines, finish_reason="stop", number=1):
    return make_world([(number, list(lines), finish_reason)])


@pytest.mark.parametrize(
    ("chances", "count", "soft", "hard"),
    [
        (RIGHT, "n_correct", 1.0, 1),
        (WRONG, "n_wrong", 0.0, 0),
        (MISSING, "n_no_answer", 0.0, 0),
        (TRUNCATED, "n_truncated", 0.0, 0),
        (TIMEOUT, "n_timeout", None, None),
    ],
)
def test_each_kind_of_draw_has_its_own_count(chances, count, soft, hard):
    result = label(one("a", "The answer is 1"), chances)
    row = result.step_labels.row(0, named=True)
    counts = {name: row[name] for name in ("n_correct", "n_wrong", "n_no_answer", "n_truncated", "n_timeout")}
    assert counts == dict.fromkeys(counts, 0) | {count: 3}
    assert (row["soft"], row["hard"], row["label_source"]) == (soft, hard, "sampled")
    assert row["n_completions"] == (0 if count == "n_timeout" else 3)
    assert (row["ci_low"] is None) == (soft is None)


def test_truncated_draws_can_be_left_out():
    result = label(one("a", "The answer is 1"), TRUNCATED, truncated="exclude")
    row = result.step_labels.row(0, named=True)
    assert (row["n_completions"], row["n_truncated"], row["soft"], row["hard"]) == (0, 3, None, None)
    assert result.counts["steps_undecided"] == 1
    assert set(result.completions["verdict"]) == {"no_answer"}


@pytest.mark.parametrize(("answer", "expected"), [("1", 1), ("2", 0), ("SLOW", None)])
def test_the_last_step_of_a_finished_solution_has_its_outcome(answer, expected):
    rows = label(one("a", f"The answer is {answer}"), RIGHT).step_labels.rows(named=True)
    assert (rows[1]["hard"], rows[1]["soft"], rows[1]["label_source"]) == (expected, expected, "outcome")
    assert rows[1]["n_completions"] == 0


def test_a_finished_solution_without_an_answer_ends_in_0():
    assert label(one("a", "I give up"), RIGHT).step_labels["hard"].to_list() == [1, 0]


def test_the_last_step_of_a_cut_off_solution_is_completed_where_there_is_room():
    world = one("a", "b", finish_reason="length")
    result = label(world, RIGHT, max_tokens=50)
    assert result.step_labels["label_source"].to_list() == ["sampled", "sampled"]
    assert result.counts["rollouts_truncated"] == 1


def test_a_cut_off_solution_that_used_up_its_limit_has_no_label_at_its_end():
    """Response of 3 tokens ("a", newline, "b") under a limit of 3: no room after it, one token after step 0."""
    world = one("a", "b", finish_reason="length")
    result = label(world, RIGHT, sampling=SamplingConfig(max_tokens=3))
    rows = result.step_labels.rows(named=True)
    assert (rows[0]["n_truncated"], rows[0]["hard"]) == (3, 0)
    assert (rows[1]["label_source"], rows[1]["hard"], rows[1]["soft"]) == ("unlabelled", None, None)
    assert result.counts["steps_no_room"] == 1
    assert result.counts["steps_unlabelled"] == 1


def test_a_prefix_that_leaves_no_room_in_the_context_is_counted():
    world = one("a", "bb", "The answer is 1")
    prompt = world.rollouts["prompt_token_ids"][0].len()
    # Prefix 0 has prompt + 2 tokens, prefix 1 prompt + 5; completions of 50.
    engine = ScriptedEngine(lambda prompt: RIGHT, max_model_len=prompt + 2 + 50)
    result = label(world, RIGHT, engine=engine, max_tokens=50)
    assert result.step_labels["hard"].to_list() == [1, None, 1]
    assert result.counts["steps_no_room"] == 1


def test_completions_share_the_solutions_own_limit():
    """Limit 30: after "a\\n" 28 tokens are left; "so\\nThe answer is 1" and EOS take 19; 14 would not do."""
    world = one("a", "b" * 13, "The answer is 1")
    result = label(world, RIGHT, sampling=SamplingConfig(max_tokens=30))
    rows = result.step_labels.rows(named=True)
    assert (rows[0]["n_correct"], rows[1]["n_truncated"]) == (3, 3)
    draws = result.completions.filter(pl.col("step_index") == 1)
    assert draws["n_tokens"].to_list() == [14] * 3
    assert draws["text"].to_list() == ["so\nThe answer "[:14]] * 3
    assert draws["finish_reason"].to_list() == ["length"] * 3


def test_an_answer_stated_in_the_prefix_counts():
    result = label(one("The answer is 1", "so it is", "done"), MISSING)
    assert result.step_labels["hard"].to_list() == [1, 1, 1]
    assert result.completions["text"].unique().to_list() == ["no idea"]


def test_solutions_with_the_same_prefix_share_its_draws():
    world = make_world([(1, ["a", "b", "The answer is 1"], "stop"), (1, ["a", "c", "The answer is 2"], "stop")])
    engine = ScriptedEngine(random_chances(1))
    result = label(world, None, engine=engine)
    assert engine.calls == 9  # three distinct prefixes of three draws
    assert result.completions.height == 9
    rows = result.step_labels.filter(pl.col("step_index") == 0).drop("rollout_id")
    assert rows.row(0) == rows.row(1)
    assert result.receipt["completions_brute"] == 9


def test_draws_do_not_depend_on_what_else_is_labelled():
    world = random_world(6, 12)
    whole = label(world, None, engine=ScriptedEngine(random_chances(6)), max_tokens=60)
    for rollout_id in world.rollouts["rollout_id"]:
        part = type(world)(
            world.problems,
            world.rollouts.filter(pl.col("rollout_id") == rollout_id),
            world.checked,
            world.steps.filter(pl.col("rollout_id") == rollout_id),
        )
        alone = label(part, None, engine=ScriptedEngine(random_chances(6)), max_tokens=60)
        assert alone.step_labels.equals(whole.step_labels.filter(pl.col("rollout_id") == rollout_id))


def test_empty_responses_are_counted_and_nothing_to_label_is_fine():
    world = make_world([(1, [""], "stop")])
    result = label(world, RIGHT)
    assert result.counts["rollouts_without_steps"] == 1
    assert result.step_labels.schema == empty("step_labels").schema
    assert result.completions.schema == empty("completions").schema
    assert receipt_rates(result.receipt)["completions_ratio"] is None


def test_frames_have_the_tables_columns_and_known_sources():
    result = label(random_world(8, 10), None, engine=ScriptedEngine(random_chances(8)), max_tokens=60)
    assert result.step_labels.schema == empty("step_labels").schema
    assert result.completions.schema == empty("completions").schema
    assert set(result.step_labels["label_source"]) <= set(LABEL_SOURCES)
    assert result.completions["completion_id"].is_unique().all()


def test_receipt_adds_up():
    world = make_world(
        [(1, ["a", "b", "c", "The answer is 1"], "stop"), (2, ["a", "b", "c", "The answer is 9"], "stop")]
    )
    receipt = label(world, WRONG, schedule="closure", completions=4).receipt
    # The first solution is implied by its end (3 prefixes), the second has 3 prefixes without a success.
    assert receipt["completions_brute"] == 24
    assert (receipt["completions_sampled"], receipt["completions_implied"], receipt["completions_saved"]) == (
        12,
        12,
        12,
    )
    assert receipt["tokens_sampled"] == 12 * len("so\nThe answer is 3" + "\0")
    rates = receipt_rates(receipt | {"engine_seconds": 4.0, "seconds": 5.0})
    assert rates == {"completions_ratio": 0.5, "tokens_per_second": 12 * 19 / 4, "seconds_per_solution": 2.5}
    table = render_receipt(receipt, 3)
    assert table.row_count == len(receipt) - 1 + len(rates)
    assert table.title == f"Labelling cost, round 3 ({receipt['schedule']})"


def test_tables_of_different_runs_are_refused():
    world = one("a", "The answer is 1")
    empty = world.checked.clear()
    with pytest.raises(UserError, match="checked"):
        label_steps(
            world.problems,
            world.rollouts,
            empty,
            world.steps,
            ScriptedEngine(lambda p: RIGHT),
            LabellingConfig(),
            SAMPLING,
            seed=1,
            checker=check_many,
        )
    with pytest.raises(UserError, match="problems"):
        label_steps(
            world.problems.clear(),
            world.rollouts,
            world.checked,
            world.steps,
            ScriptedEngine(lambda p: RIGHT),
            LabellingConfig(),
            SAMPLING,
            seed=1,
            checker=check_many,
        )
    with pytest.raises(UserError, match="steps table"):
        label(type(world)(world.problems, world.rollouts, world.checked, world.steps.head(1)), RIGHT)


def test_a_completer_with_another_tokenizer_is_refused():
    engine = ScriptedEngine(lambda prompt: RIGHT)
    engine.tokenizer = type("Shifted", (), {"decode": lambda self, ids, skip_special_tokens=True: "?" * len(ids)})()
    with pytest.raises(UserError, match="tokenizer"):
        label(one("a", "The answer is 1"), RIGHT, engine=engine)


def test_a_gold_answer_that_the_checker_refuses_is_an_error():
    world = one("a", "The answer is 1")
    bad = type("Check", (), {"verdict": "bad_gold", "answer": None, "reason": "gold_empty"})()
    with pytest.raises(UserError, match="gold"):
        check_rollouts(world.rollouts, world.problems, lambda g, t: [bad] * len(t))


class DyingEngine(ScriptedEngine):
    def generate(self, requests, sampling, on_result=None):
        super().generate(requests[: len(requests) // 2], sampling, on_result)
        raise RuntimeError("out of memory")


def test_finished_requests_stay_when_the_engine_fails(tmp_path):
    from grpo_pipeline.labelling.ledger import Ledger

    world = make_world([(1, ["a", "b", "c", "d", "The answer is 1"], "stop")])
    with Ledger(tmp_path / "l") as ledger:
        arguments = {"seed": 1, "ledger": ledger, "checker": check_many}
        config = LabellingConfig(completions=3)
        with pytest.raises(RuntimeError):
            label_steps(*world.label_args(), DyingEngine(random_chances(1)), config, SAMPLING, **arguments)
        assert len(ledger) == 6
        engine = ScriptedEngine(random_chances(1))
        label_steps(*world.label_args(), engine, config, SAMPLING, **arguments)
        assert engine.calls == 6


def test_stop_string_is_no_part_of_the_text_that_is_checked():
    class Stopping(ScriptedEngine):
        def _sample(self, prompt, seed, max_tokens):
            ids = [ord(c) for c in "The answer is 1STOP"] + [EOS]
            return Sample(np.array(ids, np.int32), np.zeros(len(ids), np.float32), "The answer is 1", "stop")

    result = label(one("a", "The answer is 1"), RIGHT, engine=Stopping(lambda prompt: RIGHT))
    assert result.completions["text"].to_list() == ["The answer is 1"] * 3
    assert result.step_labels["n_correct"].to_list() == [3, 0]


@pytest.mark.parametrize("labelling", [{"schedule": "closure"}, {"schedule": "first_error"}, {"skip_correct": True}])
def test_soft_targets_with_hard_only_labels_are_refused_by_the_configuration(labelling):
    data = {"labelling": labelling, "reward_model": {"label": "soft"}}
    with pytest.raises(UserError, match="soft_adaptive"):
        parse_config(data, "test")
    assert parse_config(data | {"reward_model": {"label": "hard"}}, "test").reward_model.label == "hard"
