"""What changed between two artifacts or runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from grpo_pipeline.inspect.figures import key_figures
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.settings_text import flatten, toml_value
from grpo_pipeline.store import ArtifactRef, Manifest, Store
from grpo_pipeline.store.manifest import RELABEL_STAGE
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
    """Label rules, settings that differ, key figures of the tables that both have, what became of shared steps.

    Steps are matched by rollout_id and step_index, so labels of the same rollouts under two rules or completers,
    or scores of them by two reward models, are compared step by step; labels of two rounds only as a whole.
    """
    one, two = a.manifest(), b.manifest()
    head: dict[str, tuple[Value, Value]] = {
        "stage": (one.stage, two.stage),
        "round": (one.round, two.round),
        "tokens": (one.tokens, two.tokens),
        "model from outside the store": (_joined(one.outside_models), _joined(two.outside_models)),
    }
    made_from = {
        f"{name} is made from": other
        for name, manifest, other, parent in (("A", one, "B", b), ("B", two, "A", a))
        if any(record.fingerprint == parent.fingerprint for record in manifest.parents)
    }
    sections = [Section("Artifact", _changed(head), made_from), Section("Label rule", _label_rules(one, two))]
    sections.append(_settings(_labelled(a), _labelled(b)))
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


def _settings(one: Manifest, two: Manifest) -> Section:
    """What differs of the settings that both have; those of one alone by name, unless both are of one stage."""
    left, right = flatten(one.settings), flatten(two.settings)
    if one.stage == two.stage:
        return Section("Settings", _texts(_changed(_paired(left, right))))
    shared = left.keys() & right.keys()
    pairs = {name: (left[name], right[name]) for name in left if name in shared and left[name] != right[name]}
    tops = [dict.fromkeys(name.partition(".")[0] for name in found if name not in shared) for found in (left, right)]
    facts = {f"only of {name}": ", ".join(found) for name, found in zip("AB", tops, strict=True) if found}
    return Section("Settings", _texts(pairs), facts)


def _labelled(ref: ArtifactRef) -> Manifest:
    """The manifest that says how an artifact was made: of relabelled steps that of the labels they are made from."""
    manifest = ref.manifest()
    if manifest.stage == RELABEL_STAGE and manifest.parents[0].store is None:
        source = Store(ref.root).artifact(manifest.parents[0].path.rsplit("/", 1)[-1])
        return manifest if source is None else _labelled(source)
    return manifest


def _label_rules(one: Manifest, two: Manifest) -> dict[str, tuple[Value, Value]]:
    """By which rule each was labelled: its name always, of the rest what one of them sets; empty without labels."""
    if not all("step_labels" in manifest.tables for manifest in (one, two)):
        return {}
    pairs = _paired(_label_rule(one), _label_rule(two))
    return {name: pair for name, pair in pairs.items() if name == "rule" or pair != (None, None)}


def _label_rule(manifest: Manifest) -> dict[str, Value]:
    if manifest.stage == RELABEL_STAGE:
        rule = manifest.settings
        after = rule["after"] if rule["name"] == "first_error" else None
        return {
            "rule": rule["name"],
            "threshold": rule["threshold"],
            "steps after the first error": after,
            "cut-off completions": rule["truncated"],
        }
    labelling = manifest.settings.get("labelling", {})
    schedule = labelling.get("schedule")
    # These two look for the first bad step and leave those after it; the others label each step by itself.
    first_error = schedule in ("first_error", "binary")
    return {
        "rule": "first_error" if first_error else "hard",
        "threshold": None,
        "steps after the first error": labelling.get("after_first_error") if first_error else None,
        "cut-off completions": labelling.get("truncated"),
    }


def _joined(names: Sequence[str]) -> str | None:
    return ", ".join(names) or None


def _texts(pairs: Mapping[str, tuple[Value, Value]]) -> dict[str, tuple[Value, Value]]:
    return {name: (toml_value(left), toml_value(right)) for name, (left, right) in pairs.items()}


def _paired(left: Mapping[str, Value], right: Mapping[str, Value]) -> dict[str, tuple[Value, Value]]:
    return {name: (left.get(name), right.get(name)) for name in {**left, **right}}


def _changed(pairs: Mapping[str, tuple[Value, Value]]) -> dict[str, tuple[Value, Value]]:
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
