"""From a source to the problems of a run: drops are counted, the splits are disjoint."""

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.config import ProblemsConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.problems import synthetic
from grpo_pipeline.problems.decontamination import common_share, find_contamination, words
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.problems.loading import load_problems
from grpo_pipeline.problems.split import split_problems
from grpo_pipeline.problems.synthetic import pool_of
from grpo_pipeline.tables import conform

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def numeric(gold):
    return None if gold.lstrip("-").isdigit() else "gold_unreadable"


def write(path, rows):
    path.write_text("".join(json.dumps({"question": q, "gold_answer": a}) + "\n" for q, a in rows))
    return str(path)


def numbered(n, start=0):
    return [(f"What is item number {i}?", str(i)) for i in range(start, start + n)]


def load(source, seed=0, **settings):
    return load_problems(ProblemsConfig(**{"source": source, "eval_count": 3, **settings}), seed, numeric)


def ids(problems, split):
    return set(problems.frame.filter(pl.col("split") == split)["problem_id"])


def test_every_drop_is_counted(tmp_path):
    rows = [
        *numbered(10),
        ("What is  item\nnumber 3?", "3"),  # a duplicate but for white space
        ("What is item number 4?", "44"),  # the question of another with another answer
        ("", "5"),
        ("No answer?", ""),
        ("Null answer?", None),
        ("Words?", "about five"),
    ]
    problems = load(write(tmp_path / "x.jsonl", rows))
    assert problems.counts == {
        "read": 16,
        "dropped_duplicate": 1,
        "dropped_conflicting_gold": 1,
        "dropped_empty_question": 1,
        "dropped_gold_missing": 2,
        "dropped_gold_unreadable": 1,
        "train": 7,
        "eval": 3,
    }
    conform(problems.frame, "problems", "x")
    assert problems.frame["problem_id"].is_sorted()
    assert problems.frame["source"].unique().to_list() == [f"{tmp_path.name}/x.jsonl"]
    row = problems.frame.filter(pl.col("gold_answer") == "4").row(0, named=True)
    assert row["problem_id"] == problem_id("What is item number 4?", "4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "line 2: JSON that is nested too deeply"),
        ('{"question": "cut \\ud83d", "gold_answer": "1"}', r"line 2: holds half of a surrogate pair \(.ud83d\)"),
        ('{"question": "q", "gold_answer": %s}' % ("9" * 5000), "line 2: JSON that cannot be read: .*4300 digits"),
    ],
)
def test_what_json_can_say_and_no_table_hold_is_refused_by_line(tmp_path, text, message):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "whole \\ud83d\\ude00", "gold_answer": "1"}\n' + text)
    with pytest.raises(UserError, match=message):
        load_problems(ProblemsConfig(source=str(path), eval_count=1), seed=0)


def test_split_does_not_depend_on_rows_and_counts_nest(tmp_path):
    rows = numbered(40)
    one = load(write(tmp_path / "a.jsonl", rows))
    other = load(write(tmp_path / "b.jsonl", rows[::-1] + rows))
    assert ids(one, "eval") == ids(other, "eval")
    assert ids(one, "eval") < ids(load(str(tmp_path / "a.jsonl"), eval_count=6), "eval")
    assert ids(one, "eval") != ids(load(str(tmp_path / "a.jsonl"), seed=1), "eval")
    limited = load(str(tmp_path / "a.jsonl"), count=5)
    assert (limited.counts["train"], limited.counts["unused"]) == (5, 32)
    assert ids(limited, "train") < ids(one, "train")


def test_own_evaluation_source_is_kept_apart(tmp_path):
    train = write(tmp_path / "train.jsonl", numbered(10))
    held_out = write(tmp_path / "eval.jsonl", [*numbered(4, start=8), ("Bad?", "words")])
    problems = load(train, eval_source=held_out, eval_count=10)
    assert problems.counts == {
        "read": 10,
        "eval_read": 5,
        "eval_dropped_gold_unreadable": 1,
        "dropped_in_eval": 2,
        "train": 8,
        "eval": 4,
    }
    assert not ids(problems, "train") & ids(problems, "eval")


def test_near_copies_of_evaluation_problems_are_dropped_listed_and_counted(tmp_path):
    text = "A farmer has twelve brown cows and seven white goats in the old barn near the river"
    train = write(
        tmp_path / "train.jsonl", [*numbered(5), (f"{text}. How many animals?", "19"), (text.upper() + "!", "20")]
    )
    held_out = write(tmp_path / "eval.jsonl", [(text, "19")])
    problems = load(train, eval_source=held_out)
    assert problems.counts["dropped_contaminated_ngram"] == 1
    assert problems.counts["dropped_contaminated_exact"] == 1
    assert sorted(problems.contaminated["match"]) == ["exact", "ngram"]
    assert set(problems.contaminated["eval_problem_id"]) == {problem_id(text, "19")}
    assert ids(problems, "train").isdisjoint(problems.contaminated["problem_id"])
    kept = load(train, eval_source=held_out, decontaminate=False)
    assert kept.counts["train"] == 7
    assert kept.contaminated.is_empty()


def test_too_small_sources_say_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"has 3 usable problems, problems.eval_count = 3 leaves none"):
        load(write(tmp_path / "x.jsonl", numbered(3)))
    with pytest.raises(UserError, match=r"no usable problem among 1 records.*the gold answer cannot be read: 1"):
        load(write(tmp_path / "y.jsonl", [("q", "words")]))
    same = write(tmp_path / "z.jsonl", numbered(3))
    with pytest.raises(UserError, match="no training problem is left"):
        load(same, eval_source=same)


def test_synthetic_problems_are_disjoint_repeatable_and_nest():
    one = load("synthetic", count=60, eval_count=20)
    assert one.counts["train"] == 60
    assert one.counts["eval"] == 20
    assert one.counts["read"] == 80 + one.contaminated.height
    assert one.frame["problem_id"].n_unique() == 80
    assert all(pool_of(identifier) == "default" for identifier in one.frame["problem_id"])
    assert one.frame.equals(load("synthetic", count=60, eval_count=20).frame)
    more = load("synthetic", count=90, eval_count=20)
    assert ids(more, "eval") == ids(one, "eval")
    assert ids(more, "train") > ids(one, "train")
    assert ids(load("synthetic", count=60, eval_count=20, seed=1), "eval") != ids(one, "eval")
    conform(one.frame, "problems", "x")


def test_more_synthetic_problems_than_there_are(monkeypatch):
    monkeypatch.setattr(synthetic, "_MAX_REFUSALS_IN_A_ROW", 0)
    with pytest.raises(UserError, match=r"synthetic.*distinct problems"):
        load("synthetic", count=100, eval_count=1)


def test_words_and_common_share_by_hand():
    assert words("It costs $1,234.50 -- 'Cheap', no?") == ["it", "costs", "1234.50", "-", "-", "cheap", "no"]
    assert common_share(list("abcd"), list("xbxd")) == 0.5
    assert common_share(list("ab"), list("xaybz")) == 1.0
    assert common_share([], ["a"]) == 0.0


@given(one=st.lists(st.sampled_from("abc"), max_size=12), other=st.lists(st.sampled_from("abcd"), max_size=12))
def test_common_share_is_the_longest_common_subsequence(one, other):
    rows = [[0] * (len(other) + 1)]
    for word in one:
        row = [0]
        for j, candidate in enumerate(other):
            row.append(rows[-1][j] + 1 if word == candidate else max(rows[-1][j + 1], row[-1]))
        rows.append(row)
    assert common_share(one, other) == (rows[-1][-1] / min(len(one), len(other)) if one and other else 0.0)


def test_long_questions_with_a_common_preamble_are_compared_in_time(tmp_path):
    preamble = " ".join(f"word{i % 997}" for i in range(20_000))
    rows = [{"question": f"{preamble} case{i} {i}", "gold_answer": str(i)} for i in range(8)]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        UserError, match=r"no training problem is left .*left out: its question is nearly an evaluation problem's: 4"
    ):
        load_problems(ProblemsConfig(source=str(path), eval_count=4), seed=0)


def test_stock_phrases_alone_are_no_match():
    phrase = "what is the smallest positive integer n such that the sum of the first n"
    rest = "odd primes greater than seventeen exceeds the number of divisors that a thousand has in base nine"
    other = "cubes ends with three zeros whenever it gets multiplied by some fixed power of forty two minus eleven"
    frame = pl.DataFrame({"problem_id": ["a"], "question": [f"{phrase} {rest}"]})
    held_out = pl.DataFrame({"problem_id": ["b"], "question": [f"{phrase} {other}"]})
    assert len(set(words(phrase))) > 11
    assert find_contamination(frame, held_out).is_empty()
    assert find_contamination(frame, frame)["match"].to_list() == ["exact"]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.data())
def test_split_is_a_partition(n, data):
    held_out_count = data.draw(st.integers(1, n - 1))
    frame = pl.DataFrame({"problem_id": [f"p{i}" for i in range(n)]})
    train, held_out = split_problems(frame, held_out_count, data.draw(st.integers(0, 5)))
    assert held_out.height == held_out_count
    assert sorted([*train["problem_id"], *held_out["problem_id"]]) == sorted(frame["problem_id"])


def test_split_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="twice"):
        split_problems(pl.DataFrame({"problem_id": ["a", "a", "b"]}), 1, 0)
    with pytest.raises(ValueError, match="leave none"):
        split_problems(pl.DataFrame({"problem_id": ["a"]}), 1, 0)


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="no shared data")
def test_gsm8k_train_and_test():
    config = ProblemsConfig(
        source=str(DATA / "gsm8k/train.jsonl"), eval_source=str(DATA / "gsm8k/test.jsonl"), eval_count=1319
    )
    problems = load_problems(config, 0)
    # Four training problems are a test problem but for a few words, found by this rule.
    assert problems.counts == {
        "read": 7473,
        "eval_read": 1319,
        "dropped_contaminated_ngram": 4,
        "train": 7469,
        "eval": 1319,
    }
    assert problems.frame["source"].unique().sort().to_list() == ["gsm8k/test.jsonl", "gsm8k/train.jsonl"]
