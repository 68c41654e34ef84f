"""Counts in words: on disk they have short names; wherever a person reads them they are said in full.

A name that begins with "left out: " in words counts what a stage, an import or an export did not take.
"""

from collections.abc import Mapping

LEFT_OUT = "left out: "

_EVALUATION = "eval_"
"""Before the names of what was counted in a run's evaluation source, where that is another than the training's."""

_PROBLEMS = {
    "read": "records read",
    "train": "training problems",
    "eval": "evaluation problems",
    "unused": "more than problems.count asks for",
    "dropped_by_reader": "left out: by the reader",
    "dropped_duplicate": "left out: the same problem again",
    "dropped_conflicting_gold": "left out: the same question with another answer",
    "dropped_empty_question": "left out: no question",
    "dropped_gold_missing": "left out: no gold answer",
    "dropped_gold_empty": "left out: the gold answer is empty",
    "dropped_gold_code": "left out: the gold answer is program code",
    "dropped_gold_over_limit": "left out: the gold answer is too long or too large to compute",
    "dropped_gold_undefined": "left out: the gold answer is undefined, such as a division by zero",
    "dropped_gold_unreadable": "left out: the gold answer cannot be read",
    "dropped_in_eval": "left out: it is an evaluation problem",
    "dropped_contaminated_exact": "left out: its question is an evaluation problem's",
    "dropped_contaminated_ngram": "left out: its question is nearly an evaluation problem's",
}
_ROLLOUTS = {
    "problems": "problems",
    "prompt_too_long": "left out: problems whose prompt leaves no room in the context",
    "rollouts": "solutions",
    "truncated": "solutions cut off at max_tokens",
    "tokens": "tokens",
}
_LABELS = {
    "rollouts_without_steps": "left out: solutions without steps",
    "rollouts_truncated": "solutions cut off at max_tokens",
    "steps": "steps",
    "steps_no_room": "steps without room for completions in the context",
    "steps_undecided": "steps whose completions decide nothing",
    "steps_unlabelled": "steps without label",
    "completions_truncated": "completions cut off at max_tokens",
    "completions_timeout": "completions whose check ran out of time",
    "solutions": "solutions",
    "solutions_judged": "solutions judged",
    "solutions_without_opinion": "solutions without a second opinion",
    "solutions_too_long": "left out: solutions too long for the judge's context",
    "votes": "answers of the judge",
    "votes_unreadable": "answers of the judge that name no step",
}
_TRAINING = {
    "rows": "rows to train on",
    "pairs": "pairs",
    "replay_rows": "rows of earlier rounds",
    "replay_missing": "rows that earlier rounds were short of",
    "without_pair": "left out: problems without both a correct and a wrong solution",
    "demonstrations": "demonstrations",
    "no_solution": "left out: problems without gold_solution",
    "sampled_tokens": "tokens sampled",
    "optimizer_steps": "optimizer steps",
}
EXCHANGED = {
    "labelled_steps": "steps with label",
    "unlabelled": "left out: no step has a label",
    "unlabelled_step": "left out: a step without label stands before one with",
    "no_steps": "left out: no steps",
    "empty_step": "left out: a step is nothing but white space",
    "too_long": "left out: too long",
    "undecided": "left out: not decided whether right or wrong",
    "tag_in_text": "left out: the text holds the form's step tag",
    "ambiguous": "left out: could not be told apart when read again",
    "without_path": "left out: the solution that it branches from is not there",
    "no_prefixes": "left out: not from a math-aps file, whose searched prefixes it would need",
    "no_tree": "left out: not from a math-aps-tree file, whose search tree it would need",
    "no_parent": "left out: the tree's node above it is not there",
}
"""Of imports and exports, of which docs/exchange.md has a table; some count the same in a run's own rows."""

WORDS = _PROBLEMS | _ROLLOUTS | _LABELS | _TRAINING | EXCHANGED


def in_words(name: str) -> str:
    """What a count counts; a name that is not known (a stage of yours) with spaces for its underscores.

    >>> in_words("no_prefixes")
    'left out: not from a math-aps file, whose searched prefixes it would need'
    >>> in_words("eval_dropped_gold_missing")
    'evaluation source, left out: no gold answer'
    """
    if name not in WORDS and name.startswith(_EVALUATION):
        return f"evaluation source, {in_words(name.removeprefix(_EVALUATION))}"
    return WORDS.get(name, name.replace("_", " "))


def listed(counts: Mapping[str, int]) -> str:
    """The counts above 0 as one line, for messages.

    >>> listed({"read": 3, "dropped_gold_missing": 2, "dropped_duplicate": 0})
    'records read: 3; left out: no gold answer: 2'
    """
    return "; ".join(f"{in_words(name)}: {count:,}" for name, count in counts.items() if count) or "nothing"


def left_out(counts: Mapping[str, int]) -> dict[str, int]:
    """In words, what was left out of something, where there was any: reason -> how many."""
    found = {in_words(name): count for name, count in counts.items() if count}
    return {words.replace(LEFT_OUT, "", 1): count for words, count in found.items() if LEFT_OUT in words}
