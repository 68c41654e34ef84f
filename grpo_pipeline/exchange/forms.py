"""The forms by name; adding one is a module with `read` and `write` and a line here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange import (
    dpo,
    math_aps,
    math_aps_tree,
    math_shepherd,
    prm800k,
    prm800k_steps,
    processbench,
    rlhflow,
    trl_stepwise,
)
from grpo_pipeline.exchange.records import Kind, Written
from grpo_pipeline.problems.records import RawRecord


@dataclass(frozen=True)
class Form:
    """A way to write labelled solutions down.

    Attributes:
        name: As on the command line.
        kind: Whether its records are `StepRecord`s or `PairRecord`s.
        description: What one line of a file is.
        read: Raw records of one file -> neutral records, which may be more (one for each judged continuation).
        write: Neutral records -> rows of a file. `write(read(file))` gives the file's rows.
    """

    name: str
    kind: Kind
    description: str
    read: Callable[[Sequence[RawRecord]], list[Any]]
    write: Callable[[Sequence[Any]], Written]


_ALL = [
    Form(
        "math-shepherd",
        "steps",
        "input with a tag after each step, label with + or - in the tag's place",
        math_shepherd.read,
        math_shepherd.write,
    ),
    Form(
        "trl-stepwise",
        "steps",
        "prompt, completions, labels: TRL's stepwise supervision",
        trl_stepwise.read,
        trl_stepwise.write,
    ),
    Form(
        "prm800k",
        "steps",
        "one person's ratings of a solution, with all completions of each step",
        prm800k.read,
        prm800k.write,
    ),
    Form(
        "prm800k-steps",
        "steps",
        "one rated step of PRM800K with the steps before it",
        prm800k_steps.read,
        prm800k_steps.write,
    ),
    Form(
        "processbench",
        "steps",
        "a solution and the index of its first wrong step",
        processbench.read,
        processbench.write,
    ),
    Form(
        "rlhflow",
        "steps",
        "a chat: the user says the steps, the assistant + or -",
        rlhflow.read,
        rlhflow.write,
    ),
    Form(
        "math-aps",
        "steps",
        "all searched prefixes of one question with their values",
        math_aps.read,
        math_aps.write,
    ),
    Form(
        "math-aps-tree",
        "steps",
        "the search tree of one question with the nodes' values",
        math_aps_tree.read,
        math_aps_tree.write,
    ),
    Form(
        "dpo",
        "pairs",
        "prompt, chosen, rejected: a preference pair",
        dpo.read,
        dpo.write,
    ),
]

FORMS: dict[str, Form] = {form.name: form for form in _ALL}


def find_form(name: str) -> Form:
    """The form of that name; UserError listing the forms where there is none."""
    if name not in FORMS:
        raise UserError(f"there is no form {name!r}; the forms are {', '.join(FORMS)}")
    return FORMS[name]
