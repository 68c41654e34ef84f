"""OmegaPRM-style search trees (math-aps): nodes with text, children and the share of completions that succeeded.

Every node is a record: the texts from the root's children down to it, labelled with the node's value at its
last step only, so that no node counts twice. The root's text is the question, and its value is how often the
question itself was solved; it is a record without steps.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.records import StepRecord, Written, rest, take
from grpo_pipeline.problems.records import RawRecord

NAME = "math-aps-tree"

_COLUMNS = ("question", "final_answer", "reasoning_steps")


def read(raws: Sequence[RawRecord]) -> list[StepRecord]:
    """One record a node, each tree from its root down."""
    return [record for line, raw in enumerate(raws) for record in _records(raw, line)]


def _records(raw: RawRecord, line: int) -> Iterator[StepRecord]:
    question = take(raw, "question", str, "a text")
    gold = take(raw, "final_answer", str, "a text")
    root = take(raw, "reasoning_steps", dict, "a tree")
    waiting: list[tuple[dict[str, Any], tuple[str, ...], list[int]]] = [(root, (), [])]
    while waiting:
        node, steps, path = waiting.pop()
        try:
            value, children = float(node["mc_value"]), node["children"]
            if not isinstance(node["text"], str):
                raise TypeError(f"text {node['text']!r:.60} is no text")
            waiting += [(child, (*steps, child["text"]), [*path, i]) for i, child in enumerate(children)][::-1]
            if not 0 <= value <= 1:
                raise ValueError(f"mc_value {value} is no share")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{raw.where}: node {path}: expected text, mc_value and children: {error!r}") from None
        extra: dict[str, Any] = {"line": line, "path": path}
        if not path:
            extra |= {"columns": rest(raw, _COLUMNS), "value": value, "text": node["text"]}
        labels = (*(None for _ in steps[1:]), value) if steps else ()
        yield StepRecord(question, steps, labels, gold, form=NAME, extra=extra)


def write(records: Sequence[StepRecord]) -> Written:
    """One tree for all records of a tree that was read; records of other forms are skipped (no_tree)."""
    written = Written()
    trees: dict[int, dict[str, Any]] = {}
    for record in sorted((r for r in records if r.form == NAME), key=lambda r: (r.extra["line"], r.extra["path"])):
        line, path = record.extra["line"], record.extra["path"]
        if not path:
            root = {"text": record.extra["text"], "mc_value": record.extra["value"], "children": []}
            trees[line] = root
            written.rows.append(
                {
                    "question": record.question,
                    "final_answer": record.gold_answer,
                    "reasoning_steps": root,
                    **record.extra["columns"],
                }
            )
            continue
        node = trees.get(line)
        for index in path[:-1]:
            # In sorted order a parent comes before its children.
            node = node["children"][index] if node and index < len(node["children"]) else None
        if node is None or len(node["children"]) != path[-1]:
            written.skipped["no_parent"] += 1
            continue
        node["children"].append({"text": record.steps[-1], "mc_value": record.labels[-1], "children": []})
    written.skipped["no_tree"] += sum(record.form != NAME for record in records)
    written.skipped = +written.skipped
    return written
