"""`evaluate-prm`: figures on sets whose value is known in closed form, and every PRM form end to end."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.evaluate_prm import evaluate_prm
from grpo_pipeline.config import ProblemsConfig, PromptConfig, RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.evaluation.labelled import LabelledSet, evaluate_sets
from grpo_pipeline.exchange.importing import import_file
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.models.scoring import judge
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.stages import prm_files
from grpo_pipeline.stages.inputs import find_rollouts
from grpo_pipeline.stages.models import base_policy, train_reward_model
from grpo_pipeline.stages.problems import make_problems
from grpo_pipeline.stages.rollouts import few_shot_examples
from grpo_pipeline.tables import from_rows
from tests.engines.tiny_models import make_tokenizer as make_other_tokenizer
from tests.models.conftest import make_model, make_tokenizer
from tests.models.others import save_chat_model, save_qwen_prm
from tests.small_run import make_run

FIRST_WRONG = [1, -1, 0, -1, 2]
"""Of solutions with three steps each."""


def labelled_set(scores, name="bench", labels=FIRST_WRONG):
    rows, truth = [], []
    for i, (values, label) in enumerate(zip(scores, labels, strict=True)):
        for step, value in enumerate(values):
            ids = {"rollout_id": f"s{i}", "problem_id": f"p{i}", "step_index": step}
            rows.append(ids | {"score": value, "prm_id": "prm"})
            if label == -1 or step <= label:
                truth.append((f"s{i}", step, step != label))
    schema = {"rollout_id": pl.String, "step_index": pl.Int32, "is_good": pl.Boolean}
    return LabelledSet(
        name, from_rows(rows, "step_scores"), pl.DataFrame(truth, schema, orient="row"), whole=True, first_error=True
    )


def figures(*sets, **further):
    frame = evaluate_sets(sets, prm_id="prm", **further)
    return dict(frame.select("metric", "value").iter_rows())


def test_trivial_scorers_have_their_closed_form():
    # "No error" finds no error and clears both right ones; "step 0" finds one of three and clears none.
    found = figures(labelled_set([[1.0] * 3] * 5))
    assert (found["bench/first_error_error"], found["bench/first_error_correct"]) == (0.0, 1.0)
    assert found["bench/first_error_f1"] == 0.0
    found = figures(labelled_set([[0.0] * 3] * 5))
    assert found["bench/first_error_error"] == pytest.approx(1 / 3)
    assert found["bench/first_error_correct"] == 0.0
    oracle = [[0.0 if step == label else 1.0 for step in range(3)] for label in FIRST_WRONG]
    found = figures(labelled_set(oracle))
    assert found["bench/first_error_f1"] == found["bench/auc"] == found["processbench/mean_f1"] == 1.0


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 8), min_size=3, max_size=3), st.integers(-1, 2)), min_size=1, max_size=8)
)
def test_f1_is_processbenchs(solutions):
    """Against its definition, written down once more: harmonic mean of both shares of exact predictions."""
    found = figures(
        labelled_set([[v / 8 for v in values] for values, _ in solutions], labels=[label for _, label in solutions])
    )
    hits = {True: [], False: []}
    for values, label in solutions:
        guess = next((i for i, v in enumerate(values) if v / 8 < 0.5), -1)
        hits[label == -1].append(guess == label)
    if not hits[True] or not hits[False]:
        assert found["bench/first_error_f1"] is None
        return
    right, wrong = (sum(h) / len(h) for h in (hits[True], hits[False]))
    assert found["bench/first_error_f1"] == pytest.approx(2 * right * wrong / (right + wrong) if right + wrong else 0.0)


def test_a_tuned_threshold_says_where_it_was_tuned():
    scaled = [[0.1 if step == label else 0.2 for step in range(3)] for label in FIRST_WRONG]
    found = figures(labelled_set(scaled, "a"), labelled_set(scaled, "b"), tune_on="a")
    assert found["a/first_error_f1"] == 0.0
    assert found["a/tuned_here_f1"] == found["b/tuned_f1"] == 1.0
    assert "a/tuned_f1" not in found
    assert 0.1 < found["processbench/tuned_threshold"] <= 0.2
    with pytest.raises(UserError, match="no set of whole solutions; there are: a"):
        figures(labelled_set(scaled, "a"), tune_on="c")
    with pytest.raises(UserError, match="the same name"):
        figures(labelled_set(scaled, "a"), labelled_set(scaled, "a"))


@pytest.fixture
def world(tmp_path):
    bench = [
        {
            "id": str(i),
            "generator": "m",
            "problem": f"q{i}",
            "steps": ["a", "b", "c"],
            "label": label,
            "final_answer_correct": label == -1,
        }
        for i, label in enumerate(FIRST_WRONG)
    ]
    rated = [
        {"instruction": "q", "responses": ["a"] * n, "next_response": "b", "answer": None, "rating": rating}
        for n, rating in [(0, 1), (1, -1), (2, 0), (1, None)]
    ]
    (tmp_path / "bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bench))
    (tmp_path / "rated.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rated))
    make_model().save_pretrained(tmp_path / "lm")
    make_tokenizer().save_pretrained(tmp_path / "lm")
    RewardModel.from_policy(tmp_path / "lm", "prm", 3).save(tmp_path / "own", parents=[], settings={})
    for name, save in (("chat", save_chat_model), ("qwen", save_qwen_prm)):
        (tmp_path / name).mkdir()
        save(tmp_path / name)

    def config(model, form, **further):
        files = (f"processbench:{tmp_path}/bench.jsonl", f"prm800k-steps:{tmp_path}/rated.jsonl")
        section = {"model": str(tmp_path / model), "form": form, "files": files} | further
        return RunConfig(name="eval", root=str(tmp_path / "runs"), prm_evaluation=section)

    return config


def run_stages(config):
    prm = prm_files.open_prm(config)
    refs = [prm_files.import_labelled(config, entry) for entry in config.prm_evaluation.files]
    scored = tuple((ref, prm_files.score_labelled(config, ref, prm)) for ref in refs)
    return scored, prm_files.evaluate_labelled(config, prm, scored)


@pytest.mark.parametrize(
    ("model", "form"),
    [("own", "own"), ("own", "trl"), ("lm", "math-shepherd"), ("chat", "rlhflow"), ("qwen", "qwen")],
)
def test_every_judged_step_is_scored_once(world, model, form):
    scored, evaluation = run_stages(world(model, form))
    found = {r["metric"]: r for r in evaluation.read("evaluations").to_dicts()}
    (bench, bench_scores), (_, rated_scores) = scored
    assert bench_scores.read("step_scores").height == 15
    # Of the rated steps only those with a rating, each at its own place.
    assert sorted(rated_scores.read("step_scores")["step_index"]) == [0, 1, 2]
    assert found["bench/first_error_f1"]["n"] == 5
    # Steps up to the first wrong one: 2 + 3 + 1 + 3 + 3.
    assert found["bench/step_accuracy"]["n"] == 12
    assert found["rated/step_accuracy"]["n"] == 3
    assert "rated/min_at_last_share" not in found
    assert {f"bench/solution_auc_{how}" for how in ("min", "prod", "last", "mean")} <= found.keys()
    assert found["bench/min_at_last_share"]["n"] == 5
    ids = dict(bench.read("solutions").select("solution_id", "place").iter_rows())
    assert {ids[name] for name in bench_scores.read("step_scores")["rollout_id"]} == set(range(5))


def test_an_imported_file_trains_a_reward_model_that_is_then_measured(world, tmp_path):
    """Steps "a" are good and steps "b" wrong, which even a tiny model learns: before training it cannot know."""
    rows = [
        {"prompt": f"q{i}", "completions": list(steps), "labels": [step == "a" for step in steps]}
        for i, steps in enumerate(["ab", "ba", "aab", "bba", "aba", "bab", "aa", "bb"])
    ]
    (tmp_path / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lm = tmp_path / "lm"
    imported = import_file(tmp_path / "toy.jsonl", "trl-stepwise", tmp_path / "store", model=lm)
    base = {"name": "toy", "root": str(tmp_path / "runs"), "model": {"path": str(lm), "device": "cpu"}}
    train = {"label": "hard", "epochs": 20, "batch_size": 4, "optimizer": {"lr": 1e-2}}
    config = RunConfig(**base, prm_dataset=str(imported), reward_model=train)
    policy = base_policy(config)
    model = train_reward_model(config, 0, prm_files.open_dataset(config, policy), policy)
    section = {"model": str(model.folder), "files": (f"trl-stepwise:{tmp_path}/toy.jsonl",)}
    _, evaluation = run_stages(RunConfig(**base, prm_evaluation=section))
    found = dict(evaluation.read("evaluations").select("metric", "value").iter_rows())
    assert found["toy/step_accuracy"] == 1.0
    make_other_tokenizer().save_pretrained(lm)
    with pytest.raises(UserError, match="cut by another tokenizer"):
        prm_files.open_dataset(config, policy)


def test_the_own_form_asks_as_the_run_does(world, tmp_path):
    """The scores are those of the tokens that a rollout of this run has, template and worked examples included."""
    gold = [{"question": f"{i}+1=?", "gold_answer": str(i + 1), "gold_solution": f"{i + 1}"} for i in range(9)]
    (tmp_path / "gold.jsonl").write_text("".join(json.dumps(row) + "\n" for row in gold))
    prompt = PromptConfig(template="Q: {question}\nA: ", examples=1)
    config = world("own", "own", files=(f"processbench:{tmp_path}/bench.jsonl",)).model_copy(
        update={
            "prompt": prompt,
            "problems": ProblemsConfig(source=str(tmp_path / "gold.jsonl"), reader="auto", count=None, eval_count=3),
        }
    )
    prm = prm_files.open_prm(config)
    (bench,) = [prm_files.import_labelled(config, entry) for entry in config.prm_evaluation.files]
    problems = make_problems(config)
    scores = prm_files.score_labelled(config, bench, prm, problems).read("step_scores")
    model = RewardModel.load(tmp_path / "own")
    builder = PromptBuilder(
        model.tokenizer, prompt, few_shot_examples(problems.read("problems"), config).iter_rows(named=True)
    )
    ids = np.array([*builder.encode("q0"), *model.tokenizer.encode("a\nb\nc")], np.int32)
    assert model.tokenizer.decode(ids).count("Q: ") == 2
    end = len(ids)
    expected = 1 / (1 + np.exp(-judge(model, [ids], [np.array([end - 4, end - 2, end - 1], np.int32)])[0]))
    first = bench.read("solutions").filter(pl.col("place") == 0)["solution_id"][0]
    found = scores.filter(pl.col("rollout_id") == first).sort("step_index")["score"].to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(UserError, match="only 0 training problems have a worked solution"):
        prm_files.score_labelled(config, bench, prm)


def test_neutral_ratings_may_be_left_out(world):
    _, evaluation = run_stages(world("own", "own", neutral="unlabelled"))
    found = {r["metric"]: r["n"] for r in evaluation.read("evaluations").to_dicts()}
    assert found["rated/step_accuracy"] == 2


def test_a_model_of_another_form_is_refused(world):
    with pytest.raises(UserError, match="chat template"):
        run_stages(world("lm", "rlhflow"))
    with pytest.raises(UserError, match="a prm model, where a policy"):
        run_stages(world("own", "math-shepherd"))
    with pytest.raises(UserError, match=r"prm_evaluation\.model is not set"):
        prm_files.open_prm(RunConfig())
    with pytest.raises(UserError, match="not FORM:PATH"):
        prm_files.import_labelled(world("own", "own"), "bench.jsonl")


def test_best_of_n_of_sampled_solutions(world, tmp_path):
    """Scripted rollouts; the tiny random PRM's context holds them."""
    rollouts = str(make_run(tmp_path / "small")["evaluate_rollouts"][0])
    config = world("own", "own", files=(), rollouts=(rollouts,))
    ref = find_rollouts(rollouts)
    prm = prm_files.open_prm(config)
    scores = prm_files.score_labelled(config, ref, prm)
    found = {
        r["metric"]: r
        for r in prm_files.evaluate_labelled(config, prm, ((ref, scores),)).read("evaluations").to_dicts()
    }
    assert {
        f"evaluate_rollouts-r0/{kind}2_{how}" for kind in ("bon", "weighted") for how in ("min", "last")
    } <= found.keys()
    assert found["evaluate_rollouts-r0/bon2_min"]["n"] == 1


@pytest.mark.slow
def test_the_flow_prints_its_figures(prefect_server, world, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    evaluate_prm(world("own", "own"))
    out = capsys.readouterr().out
    assert "first_error_f1" in out
    assert "bench" in out
