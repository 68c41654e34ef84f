"""The report's data and HTML: what a reader sees is what the tables hold, whatever parts a run has."""

import json
import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from grpo_pipeline.cli import app
from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.importing import import_file
from grpo_pipeline.labelling.commands import relabel_artifact
from grpo_pipeline.labelling.rules import Rule
from grpo_pipeline.report.current import current_artifacts
from grpo_pipeline.report.distributions import calibration, labels_by_position, score_histograms
from grpo_pipeline.report.evidence import SOLUTION_COLUMNS, Evidence, empty_frame, gather_evidence
from grpo_pipeline.report.page import write_report
from grpo_pipeline.report.solutions import choose_solutions, fair_shares
from grpo_pipeline.store import ShardResult, StageSpec, Store
from grpo_pipeline.tables import from_rows
from tests.report.made_run import COMPLETIONS, MadeRun
from tests.report.reading import read_payload, shown_steps
from tests.small_run import make_run

EVIL = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return MadeRun(tmp_path_factory.mktemp("made") / "made").whole()


@pytest.fixture(scope="module")
def html(made):
    write_report(made.store.root)
    return made.store.files.local("report.html").read_text(encoding="utf-8")


def test_every_step_has_the_label_score_and_truth_it_was_made_with(made, html):
    steps = shown_steps(read_payload(html))
    assert steps.keys() == made.truth.keys()
    for key, step in steps.items():
        assert step["truth"] == made.truth[key]
        assert step["score"] == round(1000 * made.scores[key])
        assert step["soft"] == (None if key not in made.soft else 1000 * made.soft[key])


def test_completions_are_counted_by_answer(made, html):
    payload = read_payload(html)
    labels = pl.concat(ref.read("step_labels") for ref in made.store.artifacts(stage="step_labels"))
    counted = {(r["rollout_id"], r["step_index"]): r for r in labels.iter_rows(named=True)}
    shared = 0
    for key, step in shown_steps(payload).items():
        if step["sampled"]:
            answers = payload["solutions"]["completions"][step["completions"]]
            assert sum(n for _, _, n, _ in answers) == COMPLETIONS
            assert {verdict for _, verdict, _, _ in answers} <= {"correct", "wrong"}
            right = sum(n for _, verdict, n, _ in answers if verdict == "correct")
            shared += right != counted[key]["n_correct"]
        else:
            assert step["completions"] == -1
    # The made labels draw anew for each rollout, while rollouts with a common prefix share one set of completions.
    assert shared < len(counted) / 2


def test_relabelled_steps_change_nothing_and_count_once(html, tmp_path):
    again = MadeRun(tmp_path / "made").whole()
    for labels in again.store.artifacts(stage="step_labels"):
        relabel_artifact(labels, Rule("threshold", 0.5))
        relabel_artifact(labels, Rule("interval", 0.99))
    write_report(again.store.root)
    page = again.store.files.local("report.html").read_text(encoding="utf-8")
    before, after = read_payload(html), read_payload(page)
    for part in ("positions", "agreement", "calibration", "scores", "figures"):
        assert after["charts"][part] == before["charts"][part]
    assert after["solutions"] == before["solutions"]
    tile = re.compile(r"labelled steps.*?</", re.DOTALL)
    assert tile.findall(page) == tile.findall(html)
    # Whatever the order in which artifacts are found.
    described = current_artifacts(again.store)
    assert {ref.stage for ref, _ in described} >= {"relabel", "step_labels"}
    own, reverse = (gather_evidence(refs).steps for refs in (described, described[::-1]))
    key = ["rollout_id", "step_index"]
    columns = [*key, "soft", "hard", "label_source"]
    assert own.select(columns).sort(key).equals(reverse.select(columns).sort(key))


def test_the_page_is_one_file_that_loads_nothing(html):
    assert len(re.findall(r"<script\b", html)) == 2
    assert not re.search(
        r"""(src|href)\s*=\s*(?!["']?(#|data:,))""", re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    )
    assert "https://" not in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "default-src 'none'" in html


def test_the_same_run_gives_the_same_page(made, html, tmp_path):
    out = tmp_path / "again.html"
    assert write_report(made.store.root, out) == str(out)
    assert out.read_text(encoding="utf-8") == html


def evil_run(folder):
    """A run whose problem, step, answer and source all try to break out of the page."""
    store = Store(folder)
    problem = {"problem_id": "p", "source": EVIL, "split": "train", "question": EVIL, "gold_answer": EVIL}
    rollout = {
        "rollout_id": "r",
        "problem_id": "p",
        "round": 0,
        "group_index": 0,
        "policy_id": "m",
        "prompt_token_ids": [1],
        "token_ids": [1],
        "logprobs": [0.0],
        "text": EVIL,
        "finish_reason": "stop",
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
    }
    checked = {
        "rollout_id": "r",
        "problem_id": "p",
        "answer": EVIL,
        "verdict": "wrong",
        "reason": "different",
        "checker_version": "1",
    }
    step = {
        "rollout_id": "r",
        "problem_id": "p",
        "step_index": 0,
        "text": EVIL,
        "char_start": 0,
        "char_end": len(EVIL),
        "token_end": 0,
        "is_last": True,
        "prefix_hash": "h",
    }
    figure = {"round": 0, "subject": "policy", "subject_id": "m", "metric": EVIL, "value": 0.5, "n": 1}

    def build(stage, **frames):
        spec = StageSpec(stage=stage, version=1, round=0, config={}, parents=(), seed=0)
        store.build(spec, 1, lambda _: ShardResult({name: from_rows([row], name) for name, row in frames.items()}))

    build("problems", problems=problem)
    build("label_rollouts", rollouts=rollout, checked=checked, steps=step)
    build("policy_evaluation", evaluations=figure)
    return store.root


def test_texts_cannot_break_out(tmp_path):
    write_report(evil_run(tmp_path / "evil"), tmp_path / "out.html")
    html = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<script\b", html)) == 2
    assert "<img" not in html
    assert "pwned=1</script>" not in html
    payload = read_payload(html)
    assert payload["solutions"]["steps"]["text"] == [EVIL]
    assert payload["solutions"]["problems"]["question"] == [EVIL]


def without(made_run, *, labels=False, scores=False, held_out=False):
    """A run with some of its parts."""
    rollouts, frames = made_run.solutions("label_rollouts", 0, "train")
    if labels:
        made_run.label(0, rollouts, frames)
    if scores:
        made_run.score(0, rollouts, frames)
    if held_out:
        made_run.solutions("evaluate_rollouts", 0, "eval")
    return made_run.store.root


PARTS = {
    "problems alone": (lambda run: run.store.root, set()),
    "solutions alone": (without, set()),
    "labels, no PRM": (lambda run: without(run, labels=True), {"positions"}),
    "an ORM: nothing is scored": (lambda run: without(run, labels=True, held_out=True), {"positions"}),
    "scores, no labels": (lambda run: without(run, scores=True), {"scores"}),
    "labels and scores": (
        lambda run: without(run, labels=True, scores=True),
        {"positions", "scores", "agreement", "calibration"},
    ),
}


@pytest.mark.parametrize("oracle", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_a_run_with_missing_parts_shows_what_it_has(name, oracle, tmp_path):
    make, parts = PARTS[name]
    run = make(MadeRun(tmp_path / "run", problems=4, per_problem=2, oracle=oracle))
    write_report(run, tmp_path / "out.html")
    payload = read_payload((tmp_path / "out.html").read_text(encoding="utf-8"))
    charts = payload["charts"]
    have = {part for part in ("positions", "scores", "agreement", "calibration") if charts[part]["rounds"]}
    # Without labels, right and wrong solutions calibrate a score.
    assert have == (parts | {"calibration"} if "scores" in parts else parts)
    truth = [step["truth"] for step in shown_steps(payload).values()]
    assert all((value is not None) == oracle for value in truth)
    assert charts["calibration"]["target"] == {"labels and scores": "label"}.get(name, "verdict")


def test_imported_solutions_are_shown(tmp_path):
    rows = [
        {"id": "a", "generator": "m", "problem": "q", "steps": ["x", "y"], "label": 1, "final_answer_correct": False},
        {"id": "b", "generator": "m", "problem": "q", "steps": ["x"], "label": -1, "final_answer_correct": True},
    ]
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    import_file(tmp_path / "bench.json", "processbench", tmp_path / "run", split="eval")
    write_report(str(tmp_path / "run"))
    payload = read_payload((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert payload["solutions"]["sets"] == ["imported"]
    assert sorted(payload["solutions"]["solutions"]["verdict"]) == ["correct", "wrong"]
    assert sorted(payload["solutions"]["steps"]["soft"]) == [0, 1000, 1000]
    assert set(payload["solutions"]["problems"]["question"]) == {"q"}


def test_a_replaced_configuration_takes_its_children_with_it(tmp_path):
    """Round 1 was made from labels that were then made anew: it is not shown; where it is made anew it is."""
    store = Store(tmp_path / "run")

    clock = iter(f"2026-01-01T00:00:{second:02d}" for second in range(60))

    def build(stage, round, *parents, **config):
        spec = StageSpec(stage=stage, version=1, round=round, config=config, parents=parents, seed=0)
        ref = store.build(spec, 1, lambda _: ShardResult({}))
        manifest = store.files.local(f"{ref.path}/manifest.json")  # whose clock has seconds only
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"created": next(clock)}))
        return ref

    problems = build("problems", 0)
    old = build("step_labels", 0, problems, n=4)
    child = build("reward_model", 0, old)
    grandchild = build("policy", 1, child)
    assert [ref for ref, _ in current_artifacts(store)] == [problems, child, old, grandchild]
    new = build("step_labels", 0, problems, n=8)
    assert [ref for ref, _ in current_artifacts(store)] == [problems, new]
    again = build("reward_model", 0, new)
    assert [ref for ref, _ in current_artifacts(store)] == [problems, again, new]


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_shares_are_fair(sizes, room):
    shares = fair_shares(sizes, room)
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) == min(sum(sizes), room)
    cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
    # Whoever was cut has as much as anybody, to within the one that does not divide.
    assert not cut or min(cut) >= max(shares) - 1


def test_the_sample_takes_the_same_problems_in_every_round():
    rows = [
        {"rollout_id": f"{p}{r}{i}", "problem_id": p, "round": r, "set": "labelled", "group_index": i}
        for p in "abcd"
        for r in range(2)
        for i in range(2)
    ]
    frame = pl.DataFrame(rows, schema={name: SOLUTION_COLUMNS[name] for name in rows[0]})
    more = frame.with_columns(pl.lit("training").alias("set"), pl.col("rollout_id") + "t")
    chosen = choose_solutions(pl.concat([frame, more]), 8)
    assert sorted(chosen["rollout_id"]) == [f"{p}{r}{i}" for p in "ab" for r in range(2) for i in range(2)]
    assert choose_solutions(pl.concat([frame, more]), 100).height == 32


def evidence(rows, verdicts=None, where="held-out"):
    """Steps given as (rollout, step, score, soft, truth); verdicts by rollout."""
    schema = {
        "rollout_id": pl.String,
        "step_index": pl.Int32,
        "score": pl.Float32,
        "soft": pl.Float32,
        "is_good": pl.Boolean,
    }
    steps = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        (pl.col("soft") > 0).cast(pl.Int32).alias("hard"),
        pl.when(pl.col("soft").is_not_null()).then(pl.lit("sampled")).alias("label_source"),
    )
    names = steps["rollout_id"].unique(maintain_order=True).to_list()
    solutions = pl.DataFrame({"rollout_id": names}).with_columns(
        *(
            pl.lit(None, kind).alias(column)
            for column, kind in SOLUTION_COLUMNS.items()
            if column not in ("rollout_id", "round", "set", "verdict")
        ),
        pl.lit(0, pl.Int32).alias("round"),
        pl.lit(where).alias("set"),
        pl.Series("verdict", [(verdicts or {}).get(name) for name in names], pl.String),
    )
    return Evidence(empty_frame({"problem_id": pl.String}), solutions.select(*SOLUTION_COLUMNS), steps)


def test_calibration_by_hand():
    rows = [
        ("a", 0, 0.25, None, True),
        ("a", 1, 0.25, None, False),
        ("b", 0, 0.75, None, True),
        ("b", 1, 1.0, None, True),
    ]
    found = calibration(evidence(rows), "min")
    assert (found["target"], found["unit"]) == ("truth", "steps")
    assert found["rounds"][0]["bins"] == [[0.25, 0.5, 2], [0.75, 1.0, 1], [1.0, 1.0, 1]]
    # (|0.5 - 0.25| * 2 + |1 - 0.75| + 0) / 4
    assert found["rounds"][0]["ece"] == pytest.approx(0.1875)


def test_score_histograms_by_hand():
    rows = [("a", 0, 0.9, None, None), ("a", 1, 0.12, None, None), ("b", 0, 1.0, None, None), ("c", 0, 0.5, None, None)]
    found = score_histograms(evidence(rows, {"a": "wrong", "b": "correct", "c": "timeout"}), "min")["rounds"][0]
    # The least score of a is 0.12, in bin 2 of 20; b's is 1, in the last; c was not decided.
    assert [i for i, n in enumerate(found["wrong"]) if n] == [2]
    assert [i for i, n in enumerate(found["correct"]) if n] == [19]


def test_labels_by_position_by_hand():
    soft = [0.0, 0.25, 0.26, 0.5, 0.75, 0.875, 1.0]
    rows = [("a", 0, None, value, None) for value in soft] + [("b", 40, None, 1.0, None)]
    found = labels_by_position(evidence(rows))["rounds"][0]["positions"]
    assert found[0] == [1, 1, 2, 1, 1, 1, 0]
    assert found[-1] == [0, 0, 0, 0, 0, 1, 0]
    assert len(found) == 12


def test_the_score_of_a_solution_is_its_own_rounds_models(tmp_path):
    """The starting policy's solutions are scored by every round's model; the table shows round 0's."""
    run = MadeRun(tmp_path / "run")
    rollouts, frames = run.solutions("evaluate_rollouts", 0, "eval")
    run.score(0, rollouts, frames)
    first = dict(run.scores)
    other = run.build("reward_model", 1, [], {})
    steps = frames["steps"].select(
        "rollout_id",
        "problem_id",
        "step_index",
        pl.lit(0.5, pl.Float32).alias("score"),
        pl.lit("later").alias("prm_id"),
    )
    run.build("step_scores", 1, [rollouts, other], {"step_scores": steps})
    found = gather_evidence(current_artifacts(run.store)).steps
    assert dict(zip(found.select("rollout_id", "step_index").iter_rows(), found["score"], strict=True)) == first


def test_the_command(tmp_path):
    make_run(tmp_path / "small")
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "small"), "--out", str(out), "--solutions", "5"])
    assert result.exit_code == 0
    assert result.output.strip() == str(out)
    payload = read_payload(out.read_text(encoding="utf-8"))
    assert len(payload["solutions"]["solutions"]["id"]) == 5
    assert payload["solutions"]["total"] == 16
    with pytest.raises(UserError, match="no run here"):
        write_report(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="cannot be written"):
        write_report(str(tmp_path / "small"), tmp_path / "no" / "such" / "folder.html")
