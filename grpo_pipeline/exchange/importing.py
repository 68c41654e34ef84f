"""A file of others as an artifact: its solutions as they are, and rows to train a reward model on.

Imported solutions are not rollouts: nobody here sampled their tokens, so there are no log-probabilities, and
no policy may be trained on them. They train and evaluate reward models.
"""

import hashlib
from pathlib import Path

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.files import read_form
from grpo_pipeline.exchange.forms import find_form
from grpo_pipeline.exchange.records import Neutral, PairRecord, StepRecord
from grpo_pipeline.exchange.tables import pairs_table, problems_table, solution_ids, solutions_table
from grpo_pipeline.prompts import DEFAULT_TEMPLATE
from grpo_pipeline.store import ArtifactRef, ShardResult, StageSpec, Store
from grpo_pipeline.store.manifest import IMPORTED_STAGE

VERSION = 1
RECORDS_PER_SHARD = 20_000


def import_file(
    path: Path,
    form: str,
    out: str | Path,
    *,
    model: Path | None = None,
    split: str = "train",
    neutral: Neutral = "good",
    template: str = DEFAULT_TEMPLATE,
    max_length: int = 2048,
) -> ArtifactRef:
    """Read a file into an artifact of the store at `out`.

    Tables: `solutions` (every record; `export` gives the file's rows back), `problems` (those with a known gold
    answer, if there are any) and, with a model, `prm_dataset`. For pairs: `pairs`. Counts in the manifest:
    solutions, steps, labelled_steps, and the rows that training leaves out (`rows.build_text_rows`).

    Args:
        path: The file.
        form: Its form (`forms.FORMS`).
        out: Root of the store, such as a run's folder.
        model: Folder whose tokenizer cuts the texts for `prm_dataset`; None leaves that table out.
        split: train or eval: whether a reward model may be trained on the rows.
        neutral: What PRM800K's neutral ratings train as.
        template: Text around the question in `prm_dataset`, as `prompt.template` has it.
        max_length: Longest row of `prm_dataset`, in tokens.

    Raises:
        UserError: The file is not in that form, or the store cannot be written.
    """
    kind = find_form(form).kind
    if kind == "pairs" and model is not None:
        raise UserError(
            f"form {form}: pairs have no step labels, so there are no rows to train a PRM on; leave --model out"
        )
    records = read_form(path, form)
    file_hash = hashlib.sha256(path.read_bytes()).hexdigest()
    tokenizer, tokenizer_hash = None, None
    if model is not None:
        from grpo_pipeline.models.loading import load_tokenizer

        tokenizer = load_tokenizer(model)
        tokenizer_hash = tokenizer_id(model)
    settings: dict[str, str | int | None] = {"form": form, "file": path.name, "sha256": file_hash, "split": split}
    if model is not None:
        settings |= {"tokenizer": tokenizer_hash, "neutral": neutral, "max_length": max_length}
        if template != DEFAULT_TEMPLATE:
            settings["template"] = template
    spec = StageSpec(stage=IMPORTED_STAGE, version=VERSION, round=0, config=settings, parents=(), seed=0)

    with_gold = [r for r in records if isinstance(r, StepRecord) and r.gold_answer is not None]

    def make(shard: int) -> ShardResult:
        start = shard * RECORDS_PER_SHARD
        part = records[start : start + RECORDS_PER_SHARD]
        if kind == "pairs":
            pairs = [record for record in part if isinstance(record, PairRecord)]
            return ShardResult({"pairs": pairs_table(pairs, start)}, counts={"pairs": len(pairs)})
        solutions = [record for record in part if isinstance(record, StepRecord)]
        ids = solution_ids(solutions, file_hash, start)
        frames = {"solutions": solutions_table(solutions, ids, start)}
        if with_gold:
            # All problems are in the first shard, so that each is one row of the artifact.
            frames["problems"] = problems_table([] if shard else with_gold, source=f"{form}:{path.stem}", split=split)
        counts = {
            "solutions": len(solutions),
            "steps": sum(len(record.steps) for record in solutions),
            "labelled_steps": sum(label is not None for record in solutions for label in record.labels),
        }
        if tokenizer is not None:
            from grpo_pipeline.exchange.rows import build_text_rows

            rows, dropped = build_text_rows(
                solutions, ids, tokenizer, split=split, neutral=neutral, template=template, max_length=max_length
            )
            frames["prm_dataset"] = rows
            counts |= {"rows": rows.height, **dropped}
        return ShardResult(frames, counts=counts)

    return Store(out).build(spec, max(1, -(-len(records) // RECORDS_PER_SHARD)), make)


def tokenizer_id(model: Path) -> str:
    """A hash of the tokenizer's files: what cuts the same texts into the same tokens."""
    digest = hashlib.sha256()
    for file in sorted([*model.glob("tokenizer*"), *model.glob("special_tokens_map.json"), *model.glob("vocab.*")]):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]
