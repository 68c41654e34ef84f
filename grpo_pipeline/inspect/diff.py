"""What changed between two artifacts or runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from grpo_pipeline.inspect.figures import key_figures
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.store import ArtifactRef, Store
from grpo_pipeline.tables import read

Value = object


@dataclass(frozen=True)
class Section:
    """Figures that differ, or that are worth knowing although they do not.

    Attributes:
        title: What they are about.
        pairs: Name -> (value in A, value in B).
        facts: Name -> a value of both together.
    """

    title: str
    pairs: Mapping[str, tuple[Value, Value]] = field(default_factory=dict)
    facts: Mapping[str, Value] = field(default_factory=dict)


def diff_artifacts(a: ArtifactRef, b: ArtifactRef) -> list[Section]:
    """Settings that differ, key figures of the tables that both have, and what became of shared steps.

    Steps are matched by rollout_id and step_index, so labels of the same rollouts under two rules or completers,
    or scores of them by two reward models, are compared step by step; labels of two rounds only as a whole.
    """
    one, two = a.manifest(), b.manifest()
    head = {"stage": (one.stage, two.stage), "round": (one.round, two.round), "tokens": (one.tokens, two.tokens)}
    settings = _flat(one.config), _flat(two.config)
    sections = [Section("Artifact", _changed(head)), Section("Settings", _changed(_paired(*settings)))]
    for table in one.tables:
        if table not in two.tables:
            continue
        left, right = a.read(table), b.read(table)
        figures = _paired(key_figures(table, left), key_figures(table, right))
        rows = {"rows": (left.height, right.height)}
        sections.append(Section(f"Table {table}", rows | _changed(figures), _rows_in_common(table, left, right)))
        if table in _STEPWISE:
            sections.append(Section(f"Shared steps of {table}", facts=_STEPWISE[table](left, right)))
    return [section for section in sections if section.pairs or section.facts]


def diff_runs(a: Store, b: Store) -> list[Section]:
    """Artifacts that only one has, and the evaluations of both by round."""
    left, right = ({ref.path: ref for ref in store.artifacts()} for store in (a, b))
    facts = {
        "artifacts in both": len(left.keys() & right.keys()),
        "only in A": ", ".join(sorted(path.removeprefix("artifacts/") for path in left.keys() - right.keys()))
        or "none",
        "only in B": ", ".join(sorted(path.removeprefix("artifacts/") for path in right.keys() - left.keys()))
        or "none",
    }
    figures = [
        {f"round {r['round']} {r['subject']} {r['metric']}": r["value"] for r in read("evaluations", s.root).to_dicts()}
        for s in (a, b)
    ]
    return [Section("Artifacts", facts=facts), Section("Evaluations", _changed(_paired(*figures)))]


def _rows_in_common(table: str, left: pl.DataFrame, right: pl.DataFrame) -> dict[str, Value]:
    key = list(TABLES[table].key)
    common = left.join(right, on=key, how="semi").height
    return {"rows only in A": left.height - common, "rows in both": common, "rows only in B": right.height - common}


def _label_changes(left: pl.DataFrame, right: pl.DataFrame) -> dict[str, Value]:
    on = ["rollout_id", "step_index"]
    both = left.select(*on, "hard", "soft").join(right.select(*on, "hard", "soft"), on=on, suffix="_b")
    facts: dict[str, Value] = {"steps": both.height}
    if both.is_empty():
        return facts
    names = {1: "good", 0: "wrong", None: "unlabelled"}
    moves = both.group_by("hard", "hard_b").len().sort("len", descending=True)
    for before, after, count in moves.iter_rows():
        if before != after:
            facts[f"{names[before]} -> {names[after]}"] = count
    same = both.filter(pl.col("hard").eq_missing(pl.col("hard_b"))).height
    facts["hard label unchanged"] = same
    facts["mean |difference| of soft labels"] = (both["soft"] - both["soft_b"]).abs().mean()
    return facts


def _score_changes(left: pl.DataFrame, right: pl.DataFrame) -> dict[str, Value]:
    on = ["rollout_id", "step_index"]
    both = left.select(*on, "score").join(right.select(*on, "score"), on=on, suffix="_b")
    facts: dict[str, Value] = {"steps": both.height}
    if both.height:
        difference = both["score_b"] - both["score"]
        facts["mean difference B - A"] = difference.mean()
        facts["mean |difference|"] = difference.abs().mean()
        facts["crossed 0.5"] = both.filter((pl.col("score") >= 0.5) != (pl.col("score_b") >= 0.5)).height
    return facts


_STEPWISE = {"step_labels": _label_changes, "step_scores": _score_changes}


def _flat(values: Mapping[str, Value], lead: str = "") -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{lead}{name}.") if isinstance(value, dict) else {f"{lead}{name}": value}
    return flat


def _paired(left: Mapping[str, Value], right: Mapping[str, Value]) -> dict[str, tuple[Value, Value]]:
    return {name: (left.get(name), right.get(name)) for name in {**left, **right}}


def _changed(pairs: Mapping[str, tuple[Value, Value]]) -> dict[str, tuple[Value, Value]]:
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
