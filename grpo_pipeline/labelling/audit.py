"""The audit of a labelled set: what a careful reader would look for before training on it.

Pure counting over the tables; `audit_report` shows it. A finding says what is suspicious and gives examples;
a set may have findings and still be what was wanted.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import polars as pl

Severity = Literal["note", "warning", "error"]

_EXAMPLES = 5
_TAIL = 160
_UNDECIDED_LIMIT = 0.2
_CORRELATION_LIMIT = 0.5
_KEY = ["rollout_id", "step_index"]


@dataclass(frozen=True)
class Finding:
    """Something that deserves a look.

    Attributes:
        severity: error: the set should not be used as it is; warning: look first; note: good to know.
        code: A short name of the kind.
        message: What was found, with its count.
        examples: At most five, each naming its rows.
    """

    severity: Severity
    code: str
    message: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuditReport:
    """The audit's figures.

    Attributes:
        rows: Rows of each table.
        by_position: One row a step index: ``step_index, n, labelled, hard_mean, soft_mean, sampled, implied,
            outcome, unlabelled``.
        undecided: ``completions`` and of them ``truncated``, ``timeout``, ``share``; ``steps`` and of them
            ``without_label``, ``unlabelled_share``.
        impossible: Steps with a hard label of 0 before a success in the raw evidence, and their ``share`` of
            the sampled zeros: false zeros, since existence is monotone.
        extraction: Finished texts without an answer: ``completions``, ``rollouts``, and their shares.
        correlation: Pearson correlation of the label with ``characters`` of the step and with ``position``;
            null where undefined.
        duplicates: ``keys`` (rows of one table with the same key), ``solutions`` (the same text for the same
            problem), ``questions`` (problems with the same normalised question).
        overlap: Labelled rollouts of ``eval`` problems, and train problems with an eval problem's ``question``.
        oracle: Agreement with the truth where it is known, else None: ``steps``, ``hard_accuracy``,
            ``false_zero_rate``, ``false_one_rate``, ``soft_brier``.
        findings: What deserves a look.
    """

    rows: dict[str, int]
    by_position: list[dict[str, Any]]
    undecided: dict[str, float]
    impossible: dict[str, float]
    extraction: dict[str, float]
    correlation: dict[str, float | None]
    duplicates: dict[str, int]
    overlap: dict[str, int]
    oracle: dict[str, float | None] | None
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class AuditedSet:
    """The tables that an audit looks at, all of one run.

    Attributes:
        problems: The ``problems`` table, eval problems included.
        rollouts, checked, steps, completions, step_labels: The tables of these names.
        truth: ``rollout_id, step_index, is_good`` (bool) from an oracle, or None.
    """

    problems: pl.DataFrame
    rollouts: pl.DataFrame
    checked: pl.DataFrame
    steps: pl.DataFrame
    completions: pl.DataFrame
    step_labels: pl.DataFrame
    truth: pl.DataFrame | None = None


def audit(data: AuditedSet) -> AuditReport:
    """Look a labelled set over."""
    findings: list[Finding] = []
    return AuditReport(
        rows={
            name: getattr(data, name).height
            for name in ("problems", "rollouts", "checked", "steps", "completions", "step_labels")
        },
        by_position=_by_position(data),
        undecided=_undecided(data, findings),
        impossible=_impossible(data, findings),
        extraction=_extraction(data, findings),
        correlation=_correlation(data, findings),
        duplicates=_duplicates(data, findings),
        overlap=_overlap(data, findings),
        oracle=None if data.truth is None else _oracle(data.step_labels, data.truth),
        findings=findings,
    )


def _by_position(data: AuditedSet) -> list[dict[str, Any]]:
    sources = [
        (pl.col("label_source") == source).sum().alias(source)
        for source in ("sampled", "implied", "outcome", "unlabelled")
    ]
    return (
        data.step_labels.group_by("step_index")
        .agg(
            pl.len().alias("n"),
            pl.col("hard").count().alias("labelled"),
            pl.col("hard").mean().alias("hard_mean"),
            pl.col("soft").mean().alias("soft_mean"),
            *sources,
        )
        .sort("step_index")
        .to_dicts()
    )


def _undecided(data: AuditedSet, findings: list[Finding]) -> dict[str, float]:
    truncated = data.completions.filter(pl.col("finish_reason") == "length").height
    timeout = data.completions.filter((pl.col("finish_reason") == "stop") & (pl.col("verdict") == "timeout")).height
    unlabelled = data.step_labels.filter(pl.col("hard").is_null()).height
    share = _share(truncated + timeout, data.completions.height)
    if share > _UNDECIDED_LIMIT:
        message = f"{share:.0%} of the completions are undecided ({truncated} cut off, {timeout} timed out)"
        findings.append(Finding("warning", "undecided", f"{message}: raise the token or the time limit"))
    return {
        "completions": data.completions.height,
        "truncated": truncated,
        "timeout": timeout,
        "share": share,
        "steps": data.step_labels.height,
        "without_label": unlabelled,
        "unlabelled_share": _share(unlabelled, data.step_labels.height),
    }


def _impossible(data: AuditedSet, findings: list[Finding]) -> dict[str, float]:
    succeeded = (pl.col("n_correct") > 0) | ((pl.col("label_source") == "outcome") & (pl.col("hard") == 1))
    last = pl.col("step_index").filter(succeeded).max().over("rollout_id").alias("last_success")
    is_zero = (pl.col("label_source") == "sampled") & (pl.col("hard") == 0)
    zeros = data.step_labels.with_columns(last).filter(is_zero)
    found = zeros.filter(pl.col("step_index") < pl.col("last_success")).sort(_KEY)
    if found.height:
        examples = [
            f"rollout {row['rollout_id']} step {row['step_index']}: 0 of {row['n_completions']}, "
            f"but step {row['last_success']} has a success"
            for row in found.head(_EXAMPLES).rows(named=True)
        ]
        message = (
            f"{found.height} of {zeros.height} sampled zeros stand before a success, so they are false: raise N, or "
            "close the labels (schedule closure)"
        )
        findings.append(Finding("warning", "false_zero", message, tuple(examples)))
    return {"steps": found.height, "share": _share(found.height, zeros.height)}


def _extraction(data: AuditedSet, findings: list[Finding]) -> dict[str, float]:
    finished = data.completions.filter(pl.col("finish_reason") == "stop")
    completions = finished.filter(pl.col("verdict") == "no_answer")
    ended = data.rollouts.filter(pl.col("finish_reason") == "stop").select("rollout_id", "text")
    rollouts = ended.join(data.checked.filter(pl.col("verdict") == "no_answer"), on="rollout_id", how="semi")
    shown = [("completion", *row) for row in completions.select("completion_id", "text").head(_EXAMPLES).iter_rows()]
    shown += [("rollout", *row) for row in rollouts.head(_EXAMPLES - len(shown)).iter_rows()]
    if shown:
        message = f"{completions.height} finished completions and {rollouts.height} finished rollouts have no answer"
        examples = tuple(f"{what} {name}: ...{text[-_TAIL:]!r}" for what, name, text in shown)
        findings.append(Finding("note", "no_answer", message, examples))
    return {
        "completions": completions.height,
        "completions_share": _share(completions.height, finished.height),
        "rollouts": rollouts.height,
        "rollouts_share": _share(rollouts.height, ended.height),
    }


def _correlation(data: AuditedSet, findings: list[Finding]) -> dict[str, float | None]:
    steps = data.steps.select(*_KEY, characters=pl.col("text").str.len_chars(), is_last="is_last")
    # The end of a solution is all alike ("The answer is ..."), so its length would stand for its position.
    label = pl.coalesce("soft", pl.col("hard").cast(pl.Float32))
    joined = data.step_labels.join(steps, on=_KEY).filter(~pl.col("is_last") & label.is_not_null())
    result: dict[str, float | None] = {}
    for name, column in (("characters", "characters"), ("position", "step_index")):
        value = joined.select(pl.corr(label, pl.col(column))).item() if joined.height > 1 else None
        result[name] = None if value is None or value != value else float(value)  # noqa: PLR0124 - NaN
    length = result["characters"]
    if length is not None and abs(length) > _CORRELATION_LIMIT:
        message = f"the label follows the step's length (correlation {length:+.2f}): a model may learn length instead"
        findings.append(Finding("warning", "length", message))
    return result


def _duplicates(data: AuditedSet, findings: list[Finding]) -> dict[str, int]:
    keys = 0
    for name, key in (("step_labels", _KEY), ("steps", _KEY), ("rollouts", ["rollout_id"]),
                      ("completions", ["completion_id"]), ("problems", ["problem_id"])):  # fmt: skip
        frame: pl.DataFrame = getattr(data, name)
        repeated = frame.height - frame.select(key).unique().height
        if repeated:
            examples = frame.filter(frame.select(key).is_duplicated()).select(key).unique().sort(key).head(_EXAMPLES)
            message = f"{repeated} rows of {name} have the key of another row"
            findings.append(Finding("error", "duplicate_key", message, tuple(str(row) for row in examples.iter_rows())))
        keys += repeated
    texts = data.rollouts.select("problem_id", "text")
    solutions = texts.height - texts.unique().height
    if solutions:
        share = _share(solutions, texts.height)
        message = f"{solutions} solutions ({share:.0%}) repeat another of the same problem word for word"
        findings.append(Finding("note", "duplicate_solution", message))
    questions = data.problems.select(_normalised("question").alias("question"))
    repeated = questions.height - questions.unique().height
    if repeated:
        examples = questions.filter(questions.is_duplicated()).unique().sort("question").head(_EXAMPLES)
        message = f"{repeated} problems ask the question of another problem"
        findings.append(Finding("warning", "duplicate_question", message, tuple(examples["question"].to_list())))
    return {"keys": keys, "solutions": solutions, "questions": repeated}


def _overlap(data: AuditedSet, findings: list[Finding]) -> dict[str, int]:
    held_out = data.problems.filter(pl.col("split") == "eval")
    labelled = data.step_labels.select("rollout_id", "problem_id").unique()
    trained_on = labelled.join(held_out, on="problem_id", how="semi").sort("rollout_id")
    if trained_on.height:
        message = f"{trained_on.height} labelled solutions are of evaluation problems: keep them out of training"
        examples = tuple(str(name) for name in trained_on["rollout_id"].head(_EXAMPLES))
        findings.append(Finding("error", "eval_labelled", message, examples))
    question = _normalised("question").alias("question")
    train = data.problems.filter(pl.col("split") == "train").select("problem_id", question)
    shared = train.join(held_out.select(question), on="question", how="semi").sort("problem_id")
    if shared.height:
        message = f"{shared.height} training problems ask an evaluation problem's question"
        examples = tuple(f"problem {row[0]}: {row[1][:_TAIL]}" for row in shared.head(_EXAMPLES).iter_rows())
        findings.append(Finding("error", "train_eval_overlap", message, examples))
    return {"eval_rollouts": trained_on.height, "questions": shared.height}


def _oracle(step_labels: pl.DataFrame, truth: pl.DataFrame) -> dict[str, float | None]:
    """Agreement with the truth over the steps that have a label."""
    joined = step_labels.join(truth.select(*_KEY, "is_good"), on=_KEY).filter(pl.col("hard").is_not_null())
    good, hard = pl.col("is_good"), pl.col("hard") == 1
    figures = joined.select(
        hard_accuracy=(good == hard).mean(),
        false_zero_rate=(~hard).filter(good).mean(),
        false_one_rate=hard.filter(~good).mean(),
        soft_brier=((pl.col("soft") - good.cast(pl.Float32)) ** 2).mean(),
    )
    return {"steps": joined.height, **figures.row(0, named=True)}


def _normalised(column: str) -> pl.Expr:
    return pl.col(column).str.to_lowercase().str.replace_all(r"[^\p{L}\p{N}]+", " ").str.strip_chars()


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
