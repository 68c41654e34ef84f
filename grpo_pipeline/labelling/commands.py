"""The commands `relabel` and `audit`: a finished label artifact in, a new one or a report out."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from grpo_pipeline.errors import UserError
from grpo_pipeline.evaluation.oracle import judge_rollouts
from grpo_pipeline.inspect.opening import open_artifact
from grpo_pipeline.labelling.audit import AuditedSet, audit
from grpo_pipeline.labelling.audit_report import render_audit
from grpo_pipeline.labelling.evidence import Truncated
from grpo_pipeline.labelling.rules import AfterFirstError, Rule, RuleName, relabel
from grpo_pipeline.store import ArtifactRef, ShardResult, StageSpec, Store
from grpo_pipeline.store.manifest import RELABEL_STAGE
from grpo_pipeline.store.sources import sources_of

_RELABEL_VERSION = 2
_AUDITED = ("problems", "rollouts", "checked", "steps", "completions", "step_labels")


def relabel_command(
    artifact: str, rule: str, threshold: float | None, after: str, truncated: str, judge: str | None
) -> None:
    """Derive other step labels from stored counts, and print the new artifact; arguments as in `cli.relabel`."""
    ref = open_artifact(artifact)
    second = None if judge is None else open_artifact(judge)
    new = relabel_artifact(ref, parse_rule(rule, threshold, after, truncated), second)
    labels = new.read("step_labels")
    sys.stdout.write(f"{new}\n{labels.height} steps, {labels['hard'].count()} labelled\n")
    if (without := new.manifest().counts.get("solutions_without_opinion", 0)) > 0:
        sys.stdout.write(f"{without} solutions without a second opinion, so without labels\n")


def audit_command(artifact: str, json_file: Path | None) -> None:
    """Print what an audit of a labelled artifact finds; write its figures to `json_file` if given."""
    report = audit(audited_set(open_artifact(artifact)))
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(report.as_dict(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{json_file}: cannot be written: {error.strerror}") from None
    Console().print(render_audit(report))


def parse_rule(rule: str, threshold: float | None, after: str, truncated: str) -> Rule:
    """A rule from the command line's words.

    Raises:
        UserError: A word that is not among those allowed.
    """
    _one_of("--rule", rule, RuleName.__args__)  # type: ignore[attr-defined]
    _one_of("--after", after, AfterFirstError.__args__)  # type: ignore[attr-defined]
    _one_of("--truncated", truncated, Truncated.__args__)  # type: ignore[attr-defined]
    if after != "unlabelled" and rule != "first_error":
        raise UserError(f"--after {after} says something under --rule first_error only, not under {rule}")
    return Rule(rule, threshold, after, truncated)  # type: ignore[arg-type]


def _one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(f"{option} {value}: use one of {', '.join(allowed)}")


def relabel_artifact(ref: ArtifactRef, rule: Rule, judge: ArtifactRef | None = None) -> ArtifactRef:
    """The artifact with labels by another rule, in the store of the old one."""
    spec = StageSpec(
        stage=RELABEL_STAGE,
        version=_RELABEL_VERSION,
        round=ref.round,
        config=asdict(rule),
        parents=(ref,) if judge is None else (ref, judge),
        seed=0,
    )

    def make(_: int) -> ShardResult:
        second = None if judge is None else judge.read(_opinion_table(judge))
        old = ref.read("step_labels")
        labels = relabel(old, rule, second)
        counts = {"steps_unlabelled": labels["hard"].null_count()}
        if second is not None:
            counts["solutions_without_opinion"] = old.join(second, on="rollout_id", how="anti")["rollout_id"].n_unique()
        return ShardResult({"step_labels": labels}, counts=counts)

    return Store(ref.root).build(spec, 1, make)


def _opinion_table(ref: ArtifactRef) -> str:
    for table in ("judgements", "step_labels"):
        if table in ref.tables:
            return table
    raise UserError(f"--judge {ref}: it has neither judgements (`grpo-pipeline judge`) nor step labels")


def audited_set(ref: ArtifactRef) -> AuditedSet:
    """The tables of a label artifact and of what it was made from; the oracle's truth for generated problems.

    Raises:
        UserError: A table that neither the artifact nor its ancestors in this store have.
    """
    sources = sources_of(ref)
    frames = {table: sources.nearest(table) for table in _AUDITED}
    truth = judge_rollouts(frames["problems"], frames["steps"])
    return AuditedSet(**frames, truth=truth if truth.height else None)
