"""Every schedule against its definition from brute force, with the same draws."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.config import LabellingConfig, SamplingConfig
from grpo_pipeline.labelling.evidence import wilson_interval
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.schedules import SCHEDULES
from grpo_pipeline.labelling.schedules.closure import close_labels
from tests.labelling.scripted import ScriptedEngine, check_many, make_world, random_chances, random_world

SAMPLING = SamplingConfig(max_tokens=400)


def label(world, chances, **config):
    config = LabellingConfig(**{"completions": 6, "max_tokens": 60} | config)
    engine = ScriptedEngine(chances)
    return label_steps(*world.label_args(), engine, config, SAMPLING, seed=1, checker=check_many), engine


def hard_labels(result):
    """rollout_id -> hard labels in order."""
    frame = result.step_labels.sort("rollout_id", "step_index")
    return {key[0]: group["hard"].to_list() for key, group in frame.group_by("rollout_id", maintain_order=True)}


def up_to_first_zero(labels, after):
    if 0 not in labels:
        return labels
    end = labels.index(0) + 1
    return labels[:end] + [after] * (len(labels) - end)


cases = given(st.integers(0, 10**9), st.integers(1, 8), st.integers(1, 4), st.sampled_from(["not_correct", "exclude"]))


@settings(max_examples=25, deadline=None)
@cases
def test_first_error_equals_brute_force_up_to_the_first_zero(seed, n, wave, truncated):
    world, chances = random_world(seed), random_chances(seed)
    common = {"completions": n, "wave": wave, "truncated": truncated}
    brute, _ = label(world, chances, **common)
    for setting, after in (("unlabelled", None), ("zero", 0)):
        found, engine = label(world, chances, schedule="first_error", after_first_error=setting, **common)
        expected = {key: up_to_first_zero(labels, after) for key, labels in hard_labels(brute).items()}
        assert hard_labels(found) == expected
        assert engine.calls <= brute.receipt["completions_sampled"]


@settings(max_examples=25, deadline=None)
@cases
def test_closure_equals_brute_force_after_closure(seed, n, wave, truncated):
    world, chances = random_world(seed), random_chances(seed)
    common = {"completions": n, "wave": wave, "truncated": truncated}
    brute, _ = label(world, chances, **common)
    found, _ = label(world, chances, schedule="closure", **common)
    assert hard_labels(found) == {key: close_labels(labels) for key, labels in hard_labels(brute).items()}


@settings(max_examples=15, deadline=None)
@cases
def test_soft_labels_of_every_schedule_equal_brute_forces_where_given(seed, n, wave, truncated):
    world, chances = random_world(seed), random_chances(seed)
    common = {"completions": n, "wave": wave, "truncated": truncated}
    keys = ["rollout_id", "step_index"]
    brute = label(world, chances, **common)[0].step_labels.select(*keys, brute="soft")
    for schedule in ("first_error", "closure", "binary"):
        found = label(world, chances, schedule=schedule, **common)[0].step_labels
        given_soft = found.filter(pl.col("soft").is_not_null()).join(brute, on=keys)
        assert given_soft["soft"].to_list() == given_soft["brute"].to_list()


@settings(max_examples=15, deadline=None)
@cases
def test_binary_finds_the_first_error_of_monotone_labels(seed, n, wave, truncated):
    """Where brute force's own labels are monotone and decided, binary search cannot be misled."""
    world, chances = random_world(seed), random_chances(seed)
    common = {"completions": n, "wave": wave, "truncated": truncated}
    brute = hard_labels(label(world, chances, **common)[0])
    found = hard_labels(label(world, chances, schedule="binary", **common)[0])
    for key, labels in brute.items():
        if None not in labels and labels == sorted(labels, reverse=True):
            assert found[key] == up_to_first_zero(labels, None)


def test_binary_completes_about_log2_of_the_prefixes():
    world = make_world([(1, [f"line {i}" for i in range(15)] + ["The answer is 7"], "stop")])
    bad_from = 9  # prefixes with more than 9 lines never succeed

    def chances(prompt):
        return (0.0 if prompt.count("\n") - 1 > bad_from else 1.0, 0, 0, 0)

    found, engine = label(world, chances, schedule="binary", completions=4, wave=1)
    assert hard_labels(found)["p1r0"] == [1] * 9 + [0] + [None] * 6
    # Candidates 0..14: 7 good (1 draw), 11 bad (4), 9 bad (4), 8 good (1).
    assert engine.calls == 10
    sources = found.step_labels.sort("step_index")["label_source"].to_list()
    assert sources == ["implied"] * 7 + ["sampled"] + ["sampled", "sampled"] + ["unlabelled"] * 6


@settings(max_examples=15, deadline=None)
@cases
def test_soft_adaptive_stops_at_the_first_narrow_interval(seed, n, wave, truncated):
    world, chances = random_world(seed), random_chances(seed)
    common = {"completions": n, "wave": wave, "truncated": truncated, "interval_width": 0.6}
    brute, _ = label(world, chances, **common)
    found, _ = label(world, chances, schedule="soft_adaptive", **common)
    draws = brute.completions.sort("prefix_hash", "completion_index")
    kinds = {key[0]: group for key, group in draws.group_by("prefix_hash", maintain_order=True)}
    prefixes = dict(world.steps.select(pl.concat_str("rollout_id", "step_index"), "prefix_hash").iter_rows())
    for row in found.step_labels.filter(pl.col("label_source") == "sampled").iter_rows(named=True):
        group = kinds[prefixes[f"{row['rollout_id']}{row['step_index']}"]]
        for end in [*range(wave, n, wave), n]:
            first = group.head(end)
            correct = first.filter((pl.col("verdict") == "correct") & (pl.col("finish_reason") == "stop")).height
            counts = pl.col("verdict") != "timeout"
            if truncated == "exclude":
                counts &= pl.col("finish_reason") == "stop"
            low, high = wilson_interval(correct, first.filter(counts).height)
            if end == n or high - low < 0.6:
                break
        assert (row["n_correct"], row["n_completions"]) == (correct, first.filter(counts).height)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_skipping_correct_solutions_samples_nothing_for_them(schedule):
    world = make_world([(1, ["a", "b", "The answer is 1"], "stop"), (1, ["d", "c", "The answer is 5"], "stop")])
    found, _ = label(world, lambda prompt: (0.0, 0, 0, 0), schedule=schedule, skip_correct=True)
    rows = found.step_labels.sort("rollout_id", "step_index").rows(named=True)
    assert [row["hard"] for row in rows[:3]] == [1, 1, 1]
    assert [row["soft"] for row in rows[:3]] == [None, None, 1.0]
    assert [row["label_source"] for row in rows[:3]] == ["implied", "implied", "outcome"]
    assert rows[3]["hard"] == 0 or rows[4]["hard"] == 0
    assert "p1r0" not in found.completions["rollout_id"].to_list()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_solutions_waves_share_engine_calls(schedule):
    world = random_world(3, n_solutions=40)
    _, engine = label(world, random_chances(3), schedule=schedule, completions=4, wave=2)
    # At most two waves for each of at most 8 steps, however many solutions there are.
    assert 1 <= len(engine.batches) <= 16
