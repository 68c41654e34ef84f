"""The commands as the console program runs them, on a miniature run whose figures are known by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_pipeline.cli import app
from grpo_pipeline.errors import UserError
from grpo_pipeline.inspect.diff import diff_artifacts
from grpo_pipeline.inspect.figures import key_figures
from grpo_pipeline.inspect.opening import open_artifact, open_path
from grpo_pipeline.inspect.run import in_order
from grpo_pipeline.inspect.solutions import ShownSolution, ShownStep, colour, render_solution, sample_solutions
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.store import ShardResult, StageSpec, Store
from grpo_pipeline.tables import empty

COMMANDS = ["inspect", "lineage", "diff", "verify", "gc", "import", "export", "check", "relabel", "audit", "make-tiny"]
COMMANDS += ["import-model", "judge", "report", "run", "serve-completer"]


@pytest.fixture
def call(monkeypatch):
    # Wide enough that no cell is folded, and without colours.
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setenv("NO_COLOR", "1")

    def invoke(*arguments, code=0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def squeeze(text):
    return [" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in text.splitlines()]


def test_inspect_shows_labels_lineage_and_solutions(call, artifact):
    lines = squeeze(call("inspect", artifact("step_labels"), "--rows", 2))
    assert lines[0] == "step_labels, round 0"
    assert "labelled 1" in lines
    # 18 steps of 6 solutions; only the last step of each of 3 wrong ones is labelled 0.
    assert "good, of the labelled 0.8333" in lines
    assert "completions a sampled step 4" in lines
    assert any(line.startswith("hard Int32 0 hard label, 0 or 1") for line in lines)
    assert any("label_rollouts, round 0" in line for line in lines)
    assert any("problems, round 0" in line for line in lines)
    assert any(line == "+ 0.75 3/4 Start with 2." for line in lines)
    assert any(line.startswith("- 0.00 outcome The answer is") for line in lines)


def test_inspect_shows_settings_as_toml_and_counts_in_words(call, run_folder):
    # Every kind of value, as a stage's sections have them.
    settings = {
        "labelling": {"schedule": "brute", "completer": None, "wave": {"on": True}},
        "stop": ["\n"],
        "model_1": "ab",
    }
    spec = StageSpec(stage="step_labels", version=1, round=5, config=settings, parents=(), seed=0)
    counts = {"steps_unlabelled": 1234}
    ref = Store(str(run_folder)).build(
        spec, 1, lambda _: ShardResult({"step_labels": empty("step_labels")}, counts=counts)
    )
    printed = call("inspect", ref, "--rows", 0)
    begin = printed.index("Settings")
    assert [line.strip() for line in printed[begin : printed.index("Counts")].splitlines()] == [
        "Settings",
        r'stop = ["\n"]',
        "",
        "[labelling]",
        'schedule = "brute"',
        "completer = null",
        "",
        "[labelling.wave]",
        "on = true",
        "",
    ]
    assert "steps without label 1,234" in squeeze(printed)
    assert "made with model ab from outside the store" in printed


@pytest.mark.parametrize(
    "stage", ["problems", "label_rollouts", "prm_rows", "prm_dataset", "step_scores", "policy_evaluation"]
)
def test_inspect_takes_every_artifact(call, artifact, stage):
    assert f"{stage}, round 0" in call("inspect", artifact(stage))


def test_inspect_of_a_run_lists_artifacts_and_figures_by_round(call, run_folder):
    lines = squeeze(call("inspect", run_folder))
    assert sum(line.startswith("step_labels-r") for line in lines) == 2
    assert "policy accuracy 0.5 0.6" in lines


def test_a_narrow_console_breaks_no_name(call, run_folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = call("inspect", run_folder)
    names = {path.name for path in (run_folder / "artifacts").iterdir()}
    assert names <= set(printed.split())
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_a_rounds_artifacts_stand_as_they_were_made(run_folder):
    order = [(ref.round, manifest.created) for ref, manifest in in_order(Store(str(run_folder)))]
    assert order == sorted(order)
    # Made within one second or not, what an artifact was made from stands before it.
    shown: set[str] = set()
    for ref, manifest in in_order(Store(str(run_folder))):
        assert {parent.fingerprint for parent in manifest.parents if parent.store is None} <= shown, ref
        shown.add(ref.fingerprint)


def test_lineage(call, artifact):
    lines = call("lineage", artifact("step_labels", 1)).splitlines()
    assert lines[0].startswith("step_labels, round 1")
    assert [line.strip("├─└│ ").split(" [")[0] for line in lines[1:]] == [
        "problems, round 0",
        "label_rollouts, round 1",
        "problems, round 0",
    ]


def test_verify_names_what_is_damaged(call, run_folder, artifact):
    assert "artifacts, all as they were written" in call("verify", run_folder)
    shard = next(run_folder.glob("artifacts/step_labels-r0-*/step_labels/*.parquet"))
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    assert "damaged: artifacts/step_labels-r0-" in call("verify", run_folder, code=1)


def test_gc_lists_first_and_removes_when_told(call, run_folder):
    before = sorted(path.name for path in (run_folder / "artifacts").iterdir())
    listed = call("gc", run_folder, "--keep-last", 1)
    assert sorted(path.name for path in (run_folder / "artifacts").iterdir()) == before
    gone = {line.split("artifacts/")[1] for line in listed.splitlines() if line.startswith("would remove")}
    # Round 1's training set is made from round 0's rows, which are made from its labels; scores are not needed.
    assert {name.rsplit("-", 1)[0] for name in gone} == {
        "evaluate_rollouts-r0",
        "policy_evaluation-r0",
        "prm_dataset-r0",
        "step_scores-r0",
    }
    call("gc", run_folder, "--keep-last", 1, "--yes")
    assert {path.name for path in (run_folder / "artifacts").iterdir()} == set(before) - gone
    assert "all as they were written" in call("verify", run_folder)
    assert "nothing to remove" in call("gc", run_folder, "--keep-last", 1)


def test_diff_of_a_relabelled_set(call, artifact, run_folder):
    out = call("relabel", artifact("step_labels"), "--rule", "threshold", "--threshold", 0.5)
    printed = call("diff", artifact("step_labels"), out.splitlines()[0])
    lines = squeeze(printed)
    assert "rule hard threshold" in lines
    assert "threshold - 0.5" in lines
    assert "B is made from A" in lines
    # Both have the settings of the one that was sampled.
    assert "Settings" not in printed
    assert "labelling" not in printed
    # 3 wrong solutions with one step at 1 of 4 each.
    assert "good -> wrong 3" in lines
    assert "hard label unchanged 15" in lines
    assert "mean |difference| of soft labels 0" in lines
    assert "rows in both 18" in lines


def test_diff_of_two_relabelled_sets_shows_their_rules_alone(call, artifact):
    source = artifact("step_labels")
    one, two = (
        call("relabel", source, "--rule", "first_error", "--after", after).splitlines()[0] for after in ("zero", "keep")
    )
    sections = {s.title: s for s in diff_artifacts(open_artifact(one), open_artifact(two))}
    assert sections["Label rule"].pairs == {
        "rule": ("first_error", "first_error"),
        "steps after the first error": ("zero", "keep"),
        "cut-off completions": ("not_correct", "not_correct"),
    }
    assert "Settings" not in sections


def test_diff_names_settings_that_changed_and_sections_of_one_stage_alone(artifact, run_folder):
    def made(stage, **config):
        spec = StageSpec(stage=stage, version=1, round=9, config=config, parents=(), seed=0)
        return Store(str(run_folder)).build(spec, 1, lambda _: ShardResult({}))

    one = made("label_rollouts", sampling={"temperature": 1.0, "stop": []}, group_size=4, prompt={"examples": 0})
    two = made("greedy_rollouts", sampling={"temperature": 0.0, "stop": []}, group_size=4)
    (section,) = (s for s in diff_artifacts(one, two) if s.title == "Settings")
    assert section.pairs == {"sampling.temperature": ("1.0", "0.0")}
    assert section.facts == {"only of A": "prompt"}
    other = made("label_rollouts", sampling={"temperature": 1.0}, group_size=8)
    (section,) = (s for s in diff_artifacts(one, other) if s.title == "Settings")
    assert section.pairs == {
        "sampling.stop": ("[]", "null"),
        "group_size": ("4", "8"),
        "prompt.examples": ("0", "null"),
    }


def test_diff_of_rounds_and_of_runs(call, artifact, run_folder):
    sections = diff_artifacts(*(open_artifact(artifact("policy_evaluation", n)) for n in (0, 1)))
    figures = next(section for section in sections if section.title == "Table evaluations")
    assert figures.pairs["policy accuracy"] == (0.5, 0.6)
    lines = squeeze(call("diff", run_folder, run_folder))
    assert "artifacts in both 15" in lines
    assert "only in A none" in lines
    with pytest.raises(UserError, match="two artifacts or two runs"):
        call("diff", run_folder, artifact("problems"))


def test_paths_that_are_nothing(run_folder, tmp_path):
    with pytest.raises(UserError, match="there is no run here"):
        open_path(str(tmp_path))
    with pytest.raises(UserError, match="no finished artifact here"):
        open_path(str(run_folder / "artifacts" / "x-r0-000000000000"))
    with pytest.raises(UserError, match="no finished artifact here"):
        open_artifact(str(run_folder))


@pytest.mark.parametrize("name", TABLES)
def test_figures_of_no_rows(name):
    figures = key_figures(name, empty(name))
    assert all(value in (None, 0) for value in figures.values())


def test_colours_follow_the_value():
    assert [colour(v) for v in (None, 0.0, 0.24, 0.25, 0.74, 0.75, 1.0)] == [
        "dim", "red", "red", "yellow", "yellow", "green", "green",
    ]  # fmt: skip
    shown = render_solution(ShownSolution("h", "q", (ShownStep("good\n", 1.0, "+"), ShownStep("bad", 0.0, "-"))))
    spans = {shown.plain[s.start : s.end].strip(): s.style for s in shown.spans}
    assert (spans["good"], spans["bad"]) == ("green", "red")


def test_scores_colour_held_out_solutions(artifact):
    shown = sample_solutions(open_artifact(artifact("step_scores")), 5)
    assert len(shown) == 2
    right = next(s for s in shown if s.heading.endswith("correct"))
    assert [step.note for step in right.steps] == ["score 0.88"] * 3


def test_a_users_text_is_never_taken_for_markup(call, tmp_path):
    line = '{"id": "x", "generator": "m", "problem": "[red]q[/x]", "steps": ["[bold"], "label": 0}\n'
    (tmp_path / "b.jsonl").write_text(line)
    call("import", tmp_path / "b.jsonl", "--form", "processbench", "--out", tmp_path / "run")
    (name,) = (tmp_path / "run" / "artifacts").iterdir()
    out = call("inspect", name)
    assert "[red]q[/x]" in out
    assert "[bold" in out


def test_the_program_knows_all_commands_and_loads_nothing_heavy():
    program = (
        "import sys\nfrom grpo_pipeline.cli import app\nimport typer\n"
        "print(sorted(typer.main.get_command(app).commands))\n"
        "heavy = ('torch', 'transformers', 'polars', 'pyarrow', 'sympy', 'datasets')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names, heavy = done.stdout.splitlines()
    assert names == str(sorted(COMMANDS))
    assert heavy == "[]"


@pytest.mark.parametrize("inside", ["run", "artifacts", "artifact"])
def test_an_artifact_is_found_from_wherever_one_stands(call, artifact, monkeypatch, inside):
    folder = Path(artifact("problems"))
    monkeypatch.chdir({"run": folder.parents[1], "artifacts": folder.parent, "artifact": folder}[inside])
    given = {"run": f"artifacts/{folder.name}", "artifacts": folder.name, "artifact": "."}[inside]
    assert "problems, round 0" in call("inspect", given)


@pytest.mark.parametrize("command", [["inspect", "artifact"], ["report", "run"], ["diff", "artifact", "artifact"]])
def test_a_table_that_cannot_be_decoded_is_named(run_folder, artifact, command):
    folder = artifact("label_rollouts")
    file = next(Path(folder, "rollouts").glob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[4:64] = bytes(60)
    file.write_bytes(content)
    given = [{"artifact": folder, "run": str(run_folder)}.get(word, word) for word in command]
    with pytest.raises(
        UserError, match=f"{file.name}: damaged: its sha256 is not the manifest's; .* run the stage again"
    ):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_a_broken_manifest_elsewhere_does_not_matter(call, artifact):
    Path(artifact("policy_evaluation"), "manifest.json").write_text("{")
    assert "problems, round 0" in call("inspect", artifact("problems"))
    with pytest.raises(UserError, match="not valid JSON"):
        call("inspect", artifact("policy_evaluation"))
