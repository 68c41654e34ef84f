import itertools

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.replay import mix_replay, spread_evenly
from grpo_pipeline.schemas import TABLES

SCHEMA = pl.from_arrow(TABLES["prm_dataset"].schema.empty_table()).schema


def make_rows(round_, count, *, eval_every=0):
    rows = [
        {
            "rollout_id": f"r{round_}-{index}",
            "problem_id": f"p{index % 7}",
            "round": round_,
            "split": "eval" if eval_every and index % eval_every == 0 else "train",
            "input_ids": [1, 2, index],
            "step_positions": [2],
            "soft": [0.3],
            "hard": [1.0],
            "is_replay": False,
        }
        for index in range(count)
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


def test_ten_percent_of_ninety_is_ten_and_comes_from_both_rounds():
    mix = mix_replay(
        make_rows(2, 90), {0: make_rows(0, 50), 1: make_rows(1, 50)}, fraction=0.1, seed=0, eval_problem_ids=()
    )
    assert mix.frame.height == 100
    assert mix.composition == {0: 5, 1: 5}
    assert mix.share == pytest.approx(0.1)
    assert (mix.n_wanted, mix.n_replay, mix.n_missing) == (10, 10, 0)
    replayed = mix.frame.filter("is_replay")
    assert replayed["round"].value_counts().sort("round").rows() == [(0, 5), (1, 5)]
    assert replayed.schema == SCHEMA


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ({0: 50, 1: 50}, 11, {0: 5, 1: 6}),  # the remainder goes to the newest
        ({0: 2, 1: 50, 2: 50}, 12, {0: 2, 1: 5, 2: 5}),
        ({0: 100, 1: 50, 2: 60}, 10, {0: 3, 1: 3, 2: 4}),
        ({0: 1, 1: 0, 2: 3}, 99, {0: 1, 1: 0, 2: 3}),
        ({}, 5, {}),
        ({3: 4}, 0, {3: 0}),
    ],
)
def test_spread_by_hand(sizes, total, expected):
    assert spread_evenly(sizes, total) == expected


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 12), max_size=4), st.integers(0, 40))
def test_spread_is_the_most_even_one(sizes, total):
    shares = spread_evenly(sizes, total)
    count = min(total, sum(sizes.values()))
    assert sum(shares.values()) == count
    assert all(0 <= shares[key] <= sizes[key] for key in sizes)
    # The most even way has the least sum of squares: compare with every other way.
    if sizes and count <= 12:
        ways = itertools.product(*(range(size + 1) for size in sizes.values()))
        least = min(sum(x * x for x in way) for way in ways if sum(way) == count)
        assert sum(x * x for x in shares.values()) == least


@settings(max_examples=50)
@given(
    st.integers(0, 60),
    st.lists(st.integers(0, 25), max_size=4),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]),
    st.integers(0, 10**6),
    st.sets(st.sampled_from([f"p{i}" for i in range(7)]), max_size=2),
)
def test_invariants(n_new, sizes, fraction, seed, eval_ids):
    new = make_rows(9, n_new).filter(~pl.col("problem_id").is_in(list(eval_ids)))
    history = {round_: make_rows(round_, size, eval_every=5) for round_, size in enumerate(sizes)}
    mix = mix_replay(new, history, fraction=fraction, seed=seed, eval_problem_ids=eval_ids)
    replayed = mix.frame.filter("is_replay")
    assert mix.n_wanted == round(new.height * fraction / (1 - fraction))
    usable = sum(
        f.filter((pl.col("split") == "train") & ~pl.col("problem_id").is_in(list(eval_ids))).height
        for f in history.values()
    )
    assert replayed.height == min(mix.n_wanted, usable) == mix.n_replay
    assert mix.n_missing == mix.n_wanted - mix.n_replay
    assert mix.frame["rollout_id"].is_unique().all()
    assert (mix.frame["split"] == "train").all()
    assert not set(mix.frame["problem_id"]) & eval_ids
    assert mix.frame.filter(~pl.col("is_replay")).sort("rollout_id").equals(new.sort("rollout_id"))
    counted = dict(replayed["round"].value_counts().iter_rows())
    assert {key: value for key, value in mix.composition.items() if value} == counted
    assert list(mix.composition) == sorted(history)
    # The rows are those of the history, unchanged but for the flag.
    if replayed.height:
        originals = pl.concat(history.values()).join(replayed, on="rollout_id", how="semi").sort("rollout_id")
        flagged = originals.with_columns(is_replay=pl.lit(value=True))
        assert replayed.sort("rollout_id").equals(flagged)


@settings(max_examples=25)
@given(st.integers(0, 1000), st.randoms(use_true_random=False))
def test_the_seed_decides_and_row_order_does_not(seed, rng):
    def shuffled(frame):
        return frame.sample(fraction=1, shuffle=True, seed=rng.randrange(10**6))

    new, history = make_rows(2, 40), {0: make_rows(0, 30), 1: make_rows(1, 20)}
    one = mix_replay(new, history, fraction=0.2, seed=seed, eval_problem_ids=())
    reordered = {1: shuffled(history[1]), 0: shuffled(history[0])}
    two = mix_replay(shuffled(new), reordered, fraction=0.2, seed=seed, eval_problem_ids=())
    assert one.frame.equals(two.frame)
    assert one.composition == two.composition


def test_another_seed_draws_other_rows_evenly():
    counts = dict.fromkeys(range(20), 0)
    for seed in range(300):
        mix = mix_replay(make_rows(1, 5), {0: make_rows(0, 20)}, fraction=0.5, seed=seed, eval_problem_ids=())
        for rollout_id in mix.frame.filter("is_replay")["rollout_id"]:
            counts[int(rollout_id.split("-")[1])] += 1
    # 300 draws of 5 of 20: 75 expected for each, standard deviation 7.5.
    assert all(45 <= count <= 105 for count in counts.values())


def test_fraction_zero_takes_nothing():
    mix = mix_replay(make_rows(1, 9), {0: make_rows(0, 5)}, fraction=0.0, seed=0, eval_problem_ids=())
    assert mix.composition == {0: 0}
    assert mix.frame.height == 9


def test_first_round_has_no_history():
    mix = mix_replay(make_rows(0, 9), {}, fraction=0.1, seed=0, eval_problem_ids=())
    assert (mix.n_wanted, mix.n_missing, mix.share, mix.composition) == (1, 1, 0.0, {})


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_impossible_fractions(fraction):
    with pytest.raises(ValueError, match="expected a share"):
        mix_replay(make_rows(1, 9), {}, fraction=fraction, seed=0, eval_problem_ids=())


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ({0: make_rows(0, 3).with_columns(is_replay=pl.lit(value=True))}, "replayed rows"),
        ({0: make_rows(1, 3)}, "rows of other rounds"),
        ({0: pl.concat([make_rows(0, 3), make_rows(0, 1)])}, "rows twice"),
        ({2: make_rows(2, 3)}, "another frame"),
    ],
)
def test_history_must_be_the_rounds_own_new_rows(history, message):
    with pytest.raises(ValueError, match=message):
        mix_replay(make_rows(2, 9), history, fraction=0.1, seed=0, eval_problem_ids=())


def test_new_rows_of_evaluation_problems_are_refused():
    with pytest.raises(ValueError, match="evaluation problems"):
        mix_replay(make_rows(1, 9, eval_every=3), {}, fraction=0.1, seed=0, eval_problem_ids=())
    with pytest.raises(ValueError, match="evaluation problems"):
        mix_replay(make_rows(1, 9), {}, fraction=0.1, seed=0, eval_problem_ids={"p3"})
