"""The run's summary: what came out of each round, of each reward model, and what each stage cost."""

import json
from collections.abc import Mapping
from typing import Any

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.rounds import Round
from grpo_pipeline.stages.run import Run, run_root
from grpo_pipeline.store import ArtifactRef

PRM_FIGURES = ("step_accuracy", "auc", "auc_on_policy", "hard_label_accuracy", "soft_label_brier")
OUTCOME_FIGURES = ("solution_auc", "solution_auc_on_policy", "pair_accuracy", "pair_accuracy_on_policy")


def write_summary(config: RunConfig, rounds: tuple[Round, ...]) -> dict[str, Any]:
    """Write ``summary.json`` into the run's folder and return what it holds.

    Keys: ``rounds`` (from the starting policy on: round, accuracy, accuracy_se, greedy, majK, passK, bonK with
    K = evaluation.samples), ``prms`` (round, step_accuracy and auc on the
    starting policy's held-out solutions, auc_on_policy on the round's own, hard_label_accuracy, soft_label_brier,
    replay_share, replay_rounds; of an ORM or a pairwise model solution_auc and pair_accuracy, each on both sets, in
    their place), ``stages`` (name, round, rows, tokens, seconds of the stage's own work, also
    where an earlier run did it; the scores of the labelled solutions are named ``step_scores (labelled)``).
    """
    summary = summarise(config, rounds)
    Run(config).store.files.write("summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def write_report(config: RunConfig, rounds: tuple[Round, ...]) -> str:
    """Write ``report.html`` into the run's folder, on what the rounds made, and return its path."""
    from grpo_pipeline.report.page import write_report as write

    return write(run_root(config), artifacts=[artifact for one in rounds for artifact in one.artifacts()])


def summarise(config: RunConfig, rounds: tuple[Round, ...]) -> dict[str, Any]:
    """The summary as a dictionary (see `write_summary`)."""
    k = config.evaluation.samples
    return {
        "run": config.name,
        "rounds": [_policy_row(one, k) for one in rounds],
        "prms": [_prm_row(one) for one in rounds],
        "stages": _stage_rows(rounds),
    }


def round_table(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a round: the policy's accuracy, the reward model's quality, replay, and what the round cost.

    Args:
        summary: `summarise`'s dictionary.
    """
    rows = []
    for policy, prm in zip(summary["rounds"], summary["prms"], strict=True):
        stages = [stage for stage in summary["stages"] if stage["round"] == policy["round"]]
        row = policy | {f"prm_{name}": prm[name] for name in ("step_accuracy", "auc", "auc_on_policy") if name in prm}
        row |= {name: prm[name] for name in (*OUTCOME_FIGURES, "hard_label_accuracy", "replay_share") if name in prm}
        row["tokens"] = sum(stage["tokens"] for stage in stages)
        row["seconds"] = round(sum(stage["seconds"] for stage in stages), 1)
        rows.append({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()})
    return rows


def _policy_row(one: Round, k: int) -> dict[str, Any]:
    figures = _figures(one.measured.policy)
    row: dict[str, Any] = {"round": one.number}
    row["accuracy"], row["accuracy_se"], row["problems"] = figures["accuracy"]
    for name in ("greedy", f"maj{k}", f"pass{k}", f"bon{k}"):
        row[name] = figures[name][0] if name in figures else None
    return row


def _prm_row(one: Round) -> dict[str, Any]:
    figures = _figures(one.measured.prm) if one.measured.prm else {}
    receipt = one.labelled.dataset.manifest().receipt
    names = PRM_FIGURES if one.labelled.labels else OUTCOME_FIGURES
    row: dict[str, Any] = {"round": one.number}
    row |= {name: figures[name][0] if name in figures else None for name in names}
    row["replay_share"] = receipt["replay_share"]
    row["replay_rounds"] = receipt["replay_rows"]
    return row


def _figures(artifact: ArtifactRef) -> dict[str, tuple[float | None, float | None, int]]:
    frame = artifact.read("evaluations")
    return {row["metric"]: (row["value"], row["standard_error"], row["n"]) for row in frame.iter_rows(named=True)}


def _stage_rows(rounds: tuple[Round, ...]) -> list[dict[str, Any]]:
    rows = []
    seen = set()
    for one in rounds:
        second_look = one.measured.labelled_scores
        for artifact in one.artifacts():
            if artifact.fingerprint in seen:
                continue
            seen.add(artifact.fingerprint)
            manifest = artifact.manifest()
            rows.append(
                {
                    "name": f"{artifact.stage} (labelled)" if artifact == second_look else artifact.stage,
                    "round": artifact.round,
                    "rows": sum(table.rows for table in manifest.tables.values()),
                    "tokens": manifest.tokens,
                    "seconds": round(manifest.timings.seconds, 2),
                }
            )
    return rows
