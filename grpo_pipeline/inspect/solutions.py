"""Solutions as a person reads them: the question, then each step coloured by how good it is held to be."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from rich.text import Text

from grpo_pipeline.store import ArtifactRef
from grpo_pipeline.store.sources import Sources, sources_of


@dataclass(frozen=True)
class ShownStep:
    """A step and what is known of it: a value in [0, 1] that colours it, and a note that stands before it."""

    text: str
    value: float | None
    note: str


@dataclass(frozen=True)
class ShownSolution:
    """A solution to show; `heading` names it and its verdict."""

    heading: str
    question: str
    steps: tuple[ShownStep, ...]


def colour(value: float | None) -> str:
    """A step's colour: green from 0.75, yellow from 0.25, red below, dim where nothing is known."""
    if value is None:
        return "dim"
    return "green" if value >= 0.75 else "yellow" if value >= 0.25 else "red"


def render_solution(solution: ShownSolution) -> Text:
    """The solution as coloured text; the note says in words what the colour says."""
    text = Text()
    text.append(f"{solution.heading}\n", "bold")
    text.append(f"{solution.question.strip()}\n", "italic")
    width = max((len(step.note) for step in solution.steps), default=0)
    for step in solution.steps:
        indent = "\n" + " " * (width + 4)
        text.append(f"  {step.note:<{width}}  ", "dim")
        text.append(step.text.strip("\n").replace("\n", indent) + "\n", colour(step.value))
    return text


def sample_solutions(ref: ArtifactRef, count: int) -> list[ShownSolution]:
    """The artifact's first solutions by problem and rollout; none where it has no solutions.

    Steps are coloured by the artifact's scores, else its soft labels, else its hard ones; the note gives both
    label and counts of completions.

    Raises:
        UserError: What the rows refer to is not in this store.
    """
    if not count:
        return []
    if "solutions" in ref.tables:
        return _imported(ref, count)
    table = next((t for t in ("step_scores", "step_labels", "prm_dataset", "steps") if t in ref.tables), None)
    if table is None:
        return []
    ids = ref.scan(table).select("problem_id", "rollout_id").unique().sort("problem_id", "rollout_id").head(count)
    return _own(ref, sources_of(ref), ids.collect()["rollout_id"].to_list())


def _imported(ref: ArtifactRef, count: int) -> list[ShownSolution]:
    frame = ref.scan("solutions").sort("place").head(count).collect()
    return [
        ShownSolution(
            f"solution {row['place']} ({row['form']})",
            row["question"],
            tuple(
                ShownStep(text, label, "  - " if label is None else f"{label:.2f}")
                for text, label in zip(row["steps"], row["labels"], strict=True)
            ),
        )
        for row in frame.iter_rows(named=True)
    ]


def _own(ref: ArtifactRef, sources: Sources, rollout_ids: Sequence[str]) -> list[ShownSolution]:
    steps = _of(sources, "steps", rollout_ids)
    rollouts = _of(sources, "rollouts", rollout_ids)
    questions = dict(sources.gather("problems").select("problem_id", "question").iter_rows())
    verdicts = {}
    if sources.has("checked"):
        verdicts = dict(_of(sources, "checked", rollout_ids).select("rollout_id", "verdict").iter_rows())
    known = {
        table: {(row["rollout_id"], row["step_index"]): row for row in frame.iter_rows(named=True)}
        for table, frame in _known(ref, rollout_ids).items()
    }
    shown = []
    for row in rollouts.sort("problem_id", "rollout_id").iter_rows(named=True):
        its = steps.filter(pl.col("rollout_id") == row["rollout_id"]).sort("step_index")
        shown.append(
            ShownSolution(
                f"rollout {row['rollout_id']}, round {row['round']}, {verdicts.get(row['rollout_id'], 'not checked')}",
                questions.get(row["problem_id"], f"(problem {row['problem_id']} is not in this store)"),
                tuple(_step(step, known) for step in its.iter_rows(named=True)),
            )
        )
    return shown


def _of(sources: Sources, table: str, rollout_ids: Sequence[str]) -> pl.DataFrame:
    return sources.gather(table).filter(pl.col("rollout_id").is_in(list(rollout_ids)))


def _known(ref: ArtifactRef, rollout_ids: Sequence[str]) -> dict[str, pl.DataFrame]:
    """What the artifact itself says of these rollouts' steps."""
    known: dict[str, pl.DataFrame] = {}
    for table in ("step_scores", "step_labels"):
        if table in ref.tables:
            known[table] = ref.scan(table).filter(pl.col("rollout_id").is_in(list(rollout_ids))).collect()
    if "prm_dataset" in ref.tables:
        rows = ref.scan("prm_dataset").filter(pl.col("rollout_id").is_in(list(rollout_ids)))
        rows = rows.select("rollout_id", "soft", "hard", pl.int_ranges(pl.col("hard").list.len()).alias("step_index"))
        known["step_labels"] = rows.explode("step_index", "soft", "hard").collect()
    return known


def _step(step: dict[str, object], known: dict[str, dict[tuple[object, object], dict[str, object]]]) -> ShownStep:
    key = (step["rollout_id"], step["step_index"])
    notes, value = [], None
    label = known.get("step_labels", {}).get(key)
    if label is not None:
        soft = label["soft"] if label["soft"] is not None else label["hard"]
        value = float(str(soft)) if soft is not None else None
        mark = {1: "+", 0: "-"}.get(int(float(str(label["hard"])))) if label["hard"] is not None else "?"
        notes.append(f"{mark} {value:.2f}" if value is not None else "?     ")
        if label.get("n_completions"):
            notes.append(f"{label['n_correct']}/{label['n_completions']}")
        elif "label_source" in label:
            notes.append(str(label["label_source"]))
    score = known.get("step_scores", {}).get(key)
    if score is not None:
        value = float(str(score["score"]))
        notes.append(f"score {value:.2f}")
    return ShownStep(str(step["text"]), value, " ".join(notes))
