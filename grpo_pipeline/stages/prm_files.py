"""Stages of `evaluate-prm`: anyone's PRM on labelled files and on sampled solutions, read as text.

Texts are written in the PRM's own form (`models.forms`). Own PRMs on own rollouts are better measured on the
sampled tokens, as `iterate-rl` does.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.artifacts import own_solutions
from grpo_pipeline.exchange.importing import import_file, tokenizer_id
from grpo_pipeline.exchange.records import StepRecord, hard, settle_neutral
from grpo_pipeline.exchange.tables import read_solutions
from grpo_pipeline.labelling.ledger import CompletionLedger
from grpo_pipeline.processes.devices import hold_devices
from grpo_pipeline.stages.inputs import find_dataset, find_file, find_prm
from grpo_pipeline.stages.rollouts import few_shot_examples
from grpo_pipeline.stages.run import ModelRef, Run, problem_shards, run_root, shard_plan
from grpo_pipeline.store import ArtifactRef, ShardResult
from grpo_pipeline.store.manifest import IMPORTED_STAGE
from grpo_pipeline.store.sources import sources_of
from grpo_pipeline.tables import from_rows
from grpo_pipeline.workers.build import build_in_shards
from grpo_pipeline.workers.maker import Make

if TYPE_CHECKING:
    from grpo_pipeline.evaluation.labelled import LabelledSet

VERSION = 1

WHOLE_FORMS = ("processbench", "math-shepherd", "trl-stepwise", "rlhflow")
"""Forms whose records are whole solutions."""


def open_prm(config: RunConfig) -> ModelRef:
    """The reward model to measure, `prm_evaluation.model`.

    Raises:
        UserError: It is not set, or the folder holds no model.
    """
    from grpo_pipeline.models.content import content_id

    folder = find_prm(config)
    return ModelRef(folder=folder, model_id=content_id(folder))


def open_dataset(config: RunConfig, start: ModelRef) -> ArtifactRef:
    """The rows of `prm_dataset`, which must have been cut by the tokenizer of the model to train.

    Raises:
        UserError: The folder holds no such rows, or rows of another tokenizer.
    """
    ref = find_dataset(config)
    cut_by = ref.manifest().config.get("tokenizer")
    if ref.stage == IMPORTED_STAGE and cut_by != tokenizer_id(start.folder):
        raise UserError(
            f"{ref}: its rows were cut by another tokenizer than that of {start.folder}; import the file again with "
            f"--model {start.folder}"
        )
    return ref


def import_labelled(config: RunConfig, entry: str) -> ArtifactRef:
    """One of `prm_evaluation.files`, imported into the run as evaluation data.

    Raises:
        UserError: The entry is not FORM:PATH, or the file is not in that form.
    """
    form, path = find_file(entry)
    return import_file(path, form, run_root(config), split="eval")


def score_labelled(
    config: RunConfig, solutions: ArtifactRef, prm: ModelRef, problems: ArtifactRef | None = None
) -> ArtifactRef:
    """The PRM's score of every step of the solutions; of single judged steps only theirs; table `step_scores`.

    Args:
        config: The run; form `own` asks the questions as its `prompt` section says.
        solutions: Imported or sampled solutions.
        prm: The reward model.
        problems: The run's problems, needed for a prompt with worked examples.

    Raises:
        UserError: The model is not of `prm_evaluation.form`, or a solution cannot be written in it.
    """
    run = Run(config)
    own = {"prompt": config.prompt} if config.prm_evaluation.form == "own" else {}
    spec = run.spec(
        "labelled_scores",
        VERSION,
        0,
        (solutions, prm, problems),
        form=config.prm_evaluation.form,
        dtype=config.model.dtype,
        **own,
    )

    if found := run.store.find(spec):
        return found
    shards = problem_shards(
        sorted({problem for (_, problem), _ in _records(solutions)}), config.store.problems_per_shard
    )
    maker = LabelledScoreShards(config, solutions, prm, problems, shards)
    return build_in_shards(run.store, spec, shard_plan(shards), maker, config.workers)


@dataclass(frozen=True)
class LabelledScoreShards:
    """Makes shards of a PRM's scores of texts (`workers.maker.ShardMaker`)."""

    config: RunConfig
    solutions: ArtifactRef
    prm: ModelRef
    problems: ArtifactRef | None
    shards: list[list[str]]
    ledger_folder: None = None

    @property
    def place(self) -> tuple[str, int]:
        """See `ShardMaker.place`."""
        return self.config.model.device, 1

    @contextmanager
    def open(self, ledger: CompletionLedger | None) -> Iterator[Make]:
        """See `ShardMaker.open`."""
        from grpo_pipeline.models.forms import score_texts
        from grpo_pipeline.models.others import open_prm as load

        config, place = self.config, self.config.model
        examples = few_shot_examples(self.problems.read("problems"), config) if self.problems else None
        by_problem: dict[str, list[Named]] = {}
        for named in _records(self.solutions):
            by_problem.setdefault(named[0][1], []).append(named)
        turn = threading.Lock()
        with hold_devices(place.device, f"run {config.name}: labelled_scores"):
            model, form = load(
                self.prm.local_folder(),
                config.prm_evaluation.form,
                prompt=config.prompt,
                examples=() if examples is None else examples.iter_rows(named=True),
                dtype=place.dtype,
                device=place.device,
            )

            def make(shard: int) -> ShardResult:
                records = [named for problem in self.shards[shard] for named in by_problem[problem]]
                usable, skipped = _scorable(records)
                with turn:
                    scores = score_texts(
                        model,
                        form,
                        [(record.question, record.steps) for _, record in usable],
                        tokens_per_batch=config.training.tokens_per_microbatch,
                    )
                rows = [
                    {
                        "rollout_id": name,
                        "problem_id": problem,
                        "step_index": index,
                        "score": float(value),
                        "prm_id": self.prm.model_id,
                    }
                    for ((name, problem), record), values in zip(usable, scores, strict=True)
                    for index, value in enumerate(values)
                    if _is_whole(record) or record.labels[index] is not None
                ]
                return ShardResult({"step_scores": from_rows(rows, "step_scores")}, counts=skipped)

            yield make


def evaluate_labelled(
    config: RunConfig, prm: ModelRef, scored: tuple[tuple[ArtifactRef, ArtifactRef], ...]
) -> ArtifactRef:
    """Figures on all sets together; table `evaluations` (see `evaluation.labelled.evaluate_sets`).

    Args:
        config: The run.
        prm: The reward model.
        scored: Pairs of solutions and their scores.
    """
    from grpo_pipeline.evaluation.labelled import evaluate_sets

    run = Run(config)
    how = config.prm_evaluation
    spec = run.spec(
        "labelled_evaluation",
        VERSION,
        0,
        (prm, *(ref for pair in scored for ref in pair)),
        threshold=how.threshold,
        tune_on=how.tune_on,
        neutral=how.neutral,
    )

    def make(_: int) -> ShardResult:
        sets = [_labelled_set(config, solutions, scores) for solutions, scores in scored]
        frame = evaluate_sets(sets, threshold=how.threshold, tune_on=how.tune_on, prm_id=prm.model_id)
        return ShardResult({"evaluations": frame})

    return run.store.build(spec, 1, make)


Named = tuple[tuple[str, str], StepRecord]
"""(solution's id, problem's id) and the solution."""


def _records(ref: ArtifactRef) -> list[Named]:
    if "solutions" in ref.tables:
        table = ref.read("solutions").sort("place")
        ids = table.select("solution_id", "problem_id").iter_rows()
        return [((name, problem), record) for (name, problem), record in zip(ids, read_solutions(table), strict=True)]
    records = own_solutions(ref, unlabelled=True)
    return [((record.extra["rollout_id"], record.extra["problem_id"]), record) for record in records]


def _scorable(records: list[Named]) -> tuple[list[Named], dict[str, int]]:
    """Records with something to judge, and how many were left out for what reason."""
    skipped = {"unlabelled": 0, "empty_step": 0}
    usable = []
    for name, record in records:
        if not _is_whole(record) and all(label is None for label in record.labels):
            skipped["unlabelled"] += 1
        elif not record.steps or not all(step.strip() for step in record.steps):
            skipped["empty_step"] += 1
        else:
            usable.append((name, record))
    return usable, {reason: count for reason, count in skipped.items() if count}


def _is_whole(record: StepRecord) -> bool:
    return record.form in (*WHOLE_FORMS, "own")


def _labelled_set(config: RunConfig, solutions: ArtifactRef, scores: ArtifactRef) -> "LabelledSet":
    from grpo_pipeline.evaluation.labelled import LabelledSet

    frame = scores.read("step_scores")
    if solutions.stage != IMPORTED_STAGE:
        from grpo_pipeline.evaluation.oracle import judge_rollouts

        sources = sources_of(solutions)
        truth = judge_rollouts(sources.gather("problems"), solutions.read("steps"))
        checked = sources.gather("checked").join(frame, on="rollout_id", how="semi")
        name = solutions.path.rsplit("/", 1)[-1].rsplit("-", 1)[0]
        return LabelledSet(name, frame, truth, whole=True, checked=checked)
    records = _records(solutions)
    truth = _truth(config, records).join(frame, on=["rollout_id", "step_index"], how="semi")
    manifest = solutions.manifest().config
    return LabelledSet(
        Path(manifest["file"]).stem,
        frame,
        truth,
        whole=manifest["form"] in WHOLE_FORMS,
        checked=_verdicts(records, frame),
        first_error=manifest["form"] == "processbench",
    )


def _truth(config: RunConfig, records: list[Named]) -> pl.DataFrame:
    rows = [
        (name, index, hard(label))
        for (name, _), record in records
        for index, label in enumerate(settle_neutral(record, config.prm_evaluation.neutral))
        if label is not None
    ]
    schema = {"rollout_id": pl.String, "step_index": pl.Int32, "is_good": pl.Boolean}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _verdicts(records: list[Named], scores: pl.DataFrame) -> pl.DataFrame | None:
    """`checked` rows of solutions whose file says whether the final answer is right; None where it does not."""
    rows = [
        {
            "rollout_id": name,
            "problem_id": problem,
            "answer": record.final_answer,
            "verdict": "correct" if record.extra["final_answer_correct"] else "wrong",
            "reason": "stated by the file",
            "checker_version": "file",
        }
        for (name, problem), record in records
        if isinstance(record.extra.get("final_answer_correct"), bool)
    ]
    return from_rows(rows, "checked").join(scores, on="rollout_id", how="semi") if rows else None
