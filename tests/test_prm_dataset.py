import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.prm_dataset import (
    build_orm_rows,
    build_pair_rows,
    build_pairs,
    build_prm_rows,
    require_training_rows,
)
from grpo_pipeline.replay import mix_replay
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.tables import conform

IDS = pl.List(pl.Int32)


def make_rollouts(*rows):
    """Each row: rollout_id, problem_id, prompt tokens, response tokens, finish_reason."""
    return pl.DataFrame(
        [
            {
                "rollout_id": rollout_id,
                "problem_id": problem_id,
                "round": 2,
                "prompt_token_ids": prompt,
                "token_ids": response,
                "finish_reason": finish,
            }
            for rollout_id, problem_id, prompt, response, finish in rows
        ],
        schema_overrides={"round": pl.Int32, "prompt_token_ids": IDS, "token_ids": IDS},
    )


def make_steps(**ends):
    return pl.DataFrame(
        [
            {"rollout_id": rollout_id, "step_index": index, "token_end": end}
            for rollout_id, step_ends in ends.items()
            for index, end in enumerate(step_ends)
        ],
        schema_overrides={"step_index": pl.Int32, "token_end": pl.Int32},
    )


def make_labels(*rows):
    return pl.DataFrame(
        rows,
        schema={"rollout_id": pl.String, "step_index": pl.Int32, "soft": pl.Float32, "hard": pl.Int32},
        orient="row",
    )


def make_checked(**verdicts):
    return pl.DataFrame({"rollout_id": list(verdicts), "verdict": list(verdicts.values())})


PROBLEMS = pl.DataFrame({"problem_id": ["p", "q"], "split": ["train", "eval"]})
ROLLOUTS = make_rollouts(
    ("a", "p", [1, 2], [10, 11, 12, 13], "stop"),
    ("b", "q", [3], [20, 21], "stop"),
    ("c", "p", [1, 2], [30], "stop"),
    ("d", "p", [1, 2], list(range(40, 50)), "length"),
    ("e", "p", [1, 2], [60], "stop"),
)
STEPS = make_steps(a=[0, 0, 2], b=[1], c=[0], d=[4, 9])
LABELS = make_labels(
    ("a", 0, 0.3, 1), ("a", 2, 0.0, 0), ("b", 0, 1.0, 1), ("c", 0, None, None), ("d", 0, 0.5, 1), ("d", 1, 0.5, 1)
)


def test_rows_by_hand():
    rows = build_prm_rows(ROLLOUTS, STEPS, LABELS, PROBLEMS, max_length=11)
    # c has no label, d has 12 tokens, e has no step.
    assert rows.counts == {"rows": 2, "no_steps": 1, "unlabelled": 1, "too_long": 1}
    a, b = rows.frame.to_dicts()
    assert a["input_ids"] == [1, 2, 10, 11, 12, 13]
    assert a["step_positions"] == [2, 2, 4]  # steps 0 and 1 end in the same token
    assert a["soft"] == [pytest.approx(0.3), None, 0.0]
    assert a["hard"] == [1.0, None, 0.0]
    assert (a["problem_id"], a["round"], a["split"], a["is_replay"]) == ("p", 2, "train", False)
    assert (b["split"], b["input_ids"], b["step_positions"], b["soft"]) == ("eval", [3, 20, 21], [2], [1.0])


def test_types_are_the_tables_and_soft_stays_a_float_through_parquet(tmp_path):
    rows = build_prm_rows(ROLLOUTS, STEPS, LABELS, PROBLEMS, max_length=11).frame
    assert rows.columns == TABLES["prm_dataset"].schema.names
    assert rows.schema["input_ids"] == rows.schema["step_positions"] == IDS
    assert rows.schema["soft"] == rows.schema["hard"] == pl.List(pl.Float32)
    rows.write_parquet(tmp_path / "rows.parquet")
    again = pl.read_parquet(tmp_path / "rows.parquet")
    assert again.equals(rows)
    assert again["soft"][0][0] == pytest.approx(0.3, abs=1e-7)


def test_order_of_the_input_plays_no_part():
    shuffled = [frame.sample(fraction=1, shuffle=True, seed=4) for frame in (ROLLOUTS, STEPS, LABELS)]
    one = build_prm_rows(*shuffled, PROBLEMS, max_length=100)
    assert one.frame.equals(build_prm_rows(ROLLOUTS, STEPS, LABELS, PROBLEMS, max_length=100).frame)


def test_a_label_without_step_is_an_error():
    with pytest.raises(ValueError, match="1 labels of steps that do not exist; first: rollout a, step 7"):
        build_prm_rows(ROLLOUTS, STEPS, pl.concat([LABELS, make_labels(("a", 7, 1.0, 1))]), PROBLEMS, max_length=9)


def test_two_labels_of_one_step_are_an_error():
    with pytest.raises(pl.exceptions.ComputeError, match="1:1"):
        build_prm_rows(ROLLOUTS, STEPS, pl.concat([LABELS, LABELS]), PROBLEMS, max_length=9)


def test_an_unknown_problem_is_an_error():
    with pytest.raises(ValueError, match="1 problems that are not among"):
        build_prm_rows(ROLLOUTS, STEPS, LABELS, PROBLEMS.filter(split="train"), max_length=9)


def test_evaluation_rows_never_enter_training():
    rows = build_prm_rows(ROLLOUTS, STEPS, LABELS, PROBLEMS, max_length=11).frame
    with pytest.raises(ValueError, match="1 of 2 training rows belong to evaluation problems; first: problem q"):
        require_training_rows(rows)
    train = rows.filter(split="train")
    require_training_rows(train)
    require_training_rows(train, {"other"})
    with pytest.raises(ValueError, match="problem p"):
        require_training_rows(train, {"p"})


def test_outcome_rows_by_hand():
    checked = make_checked(a="correct", b="no_answer", c="timeout", d="wrong", e="wrong")
    rows = build_orm_rows(ROLLOUTS, checked, PROBLEMS, max_length=100, eos_token_ids={13, 99})
    # c timed out and d was cut off: undecided, not wrong.
    assert rows.counts == {"rows": 3, "no_steps": 0, "unlabelled": 0, "too_long": 0, "undecided": 2}
    by_id = {row["rollout_id"]: row for row in rows.frame.to_dicts()}
    assert by_id["a"]["input_ids"] == [1, 2, 10, 11, 12]  # EOS (13) is not read
    assert by_id["a"]["step_positions"] == [4]
    assert {key: row["soft"] for key, row in by_id.items()} == {"a": [1.0], "b": [0.0], "e": [0.0]}
    assert rows.frame.columns == TABLES["prm_dataset"].schema.names
    assert rows.frame.schema["step_positions"] == IDS


def test_pairs_by_hand():
    checked = make_checked(a="correct", b="correct", c="wrong", d="wrong", e="no_answer")
    pairs = build_pairs(ROLLOUTS, checked, pairs_per_problem=4, seed=0)
    # q has no wrong response; d was cut off.
    assert pairs.select("problem_id", "chosen_id", "rejected_id").rows() == [("p", "a", "c"), ("p", "a", "e")]
    assert pairs.row(0, named=True) == {
        "problem_id": "p",
        "round": 2,
        "chosen_id": "a",
        "rejected_id": "c",
        "prompt_token_ids": [1, 2],
        "chosen_token_ids": [10, 11, 12, 13],
        "rejected_token_ids": [30],
    }


def test_pair_rows_end_where_solutions_are_scored(tmp_path):
    """A pairwise model scores the last token that is no EOS (`outcome_sequences`); it is trained on the same."""
    checked = make_checked(a="correct", b="correct", c="wrong", d="wrong", e="no_answer")
    build = {"pairs_per_problem": 4, "eos_token_ids": {13, 99}, "seed": 0}
    rows = build_pair_rows(ROLLOUTS, checked, PROBLEMS, max_length=5, **build)
    assert rows.counts == {"rows": 2, "without_pair": 1, "too_long": 0}
    pair = rows.frame.row(0, named=True)
    assert pair["chosen_token_ids"] == [10, 11, 12]  # EOS (13) is not read
    assert pair["rejected_token_ids"] in ([30], [60])
    assert set(rows.frame["split"]) == {"train"}
    conform(rows.frame, "preference_pairs", "test")
    shorter = build_pair_rows(ROLLOUTS, checked, PROBLEMS, max_length=4, **build)
    assert shorter.counts == {"rows": 0, "without_pair": 1, "too_long": 2}


def test_pairs_are_replayed_as_other_rows_are():
    rows = ROLLOUTS.filter(pl.col("problem_id") == "p")
    checked = make_checked(a="correct", b="correct", c="wrong", d="wrong", e="no_answer")
    new = build_pair_rows(rows, checked, PROBLEMS, max_length=9, pairs_per_problem=4, eos_token_ids={13}, seed=0).frame
    old = new.with_columns(pair_id=pl.col("pair_id") + "-old", round=pl.lit(1, pl.Int32))
    mixed = mix_replay(new, {1: old}, fraction=0.5, seed=0, eval_problem_ids={"q"})
    assert (mixed.n_replay, mixed.composition) == (2, {1: 2})
    assert mixed.frame.filter("is_replay")["pair_id"].str.ends_with("-old").all()
    with pytest.raises(ValueError, match="rows twice"):
        mix_replay(new, {1: new.with_columns(round=pl.lit(1, pl.Int32))}, fraction=0.5, seed=0, eval_problem_ids=())


def test_a_response_sampled_twice_counts_once():
    rollouts = make_rollouts(*[(f"g{i}", "p", [1], [5], "stop") for i in range(3)], ("w", "p", [1], [6], "stop"))
    checked = make_checked(g0="correct", g1="correct", g2="correct", w="wrong")
    assert build_pairs(rollouts, checked, pairs_per_problem=9, seed=0).height == 1


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 40), st.integers(0, 1000))
def test_pairs_are_distinct_even_and_independent_of_row_order(n_good, n_bad, limit, seed):
    rollouts = make_rollouts(
        *[(f"g{i}", "p", [1], [i], "stop") for i in range(n_good)],
        *[(f"b{i}", "p", [1], [100 + i], "stop") for i in range(n_bad)],
        ("t", "p", [1], [200], "stop"),
    )
    checked = make_checked(
        **{f"g{i}": "correct" for i in range(n_good)}, **{f"b{i}": "wrong" for i in range(n_bad)}, t="timeout"
    )
    pairs = build_pairs(rollouts, checked, pairs_per_problem=limit, seed=seed)
    assert pairs.height == min(limit, n_good * n_bad)
    assert pairs.select("chosen_id", "rejected_id").is_unique().all()
    assert pairs["chosen_id"].str.starts_with("g").all()
    assert pairs["rejected_id"].str.starts_with("b").all()
    for side in ("chosen_id", "rejected_id"):
        uses = pairs.group_by(side).len()["len"]
        assert not len(uses) or uses.max() - uses.min() <= 1
        assert len(uses) == min(pairs.height, n_good if side == "chosen_id" else n_bad)
    shuffled = rollouts.sample(fraction=1, shuffle=True, seed=seed)
    assert build_pairs(shuffled, checked, pairs_per_problem=limit, seed=seed).equals(pairs)
