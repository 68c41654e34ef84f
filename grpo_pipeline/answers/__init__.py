r"""Decide whether an answer is right: every label and every reward comes from here.

    from grpo_pipeline.answers import check, check_many
    check("\\frac{1}{2}", "so it is \\boxed{0.5}").verdict   # "correct"

A solution's way: `extract` (find the span), `normalise` and `tokens` (one spelling), `grammar` and
`structures` (nodes), `reading` (what the string means), `compare` (typed rules; `exact`, `numeric`, `sets`),
`checker` (the verdict). `pool` and `worker` hold the killable processes for what needs sympy, `many` checks
whole columns. Nothing evaluates text: not `eval`, not `sympify`, not `parse_expr`.
"""

from grpo_pipeline.answers.checker import check, check_gold, is_correct
from grpo_pipeline.answers.extract import extract_answer
from grpo_pipeline.answers.many import check_many
from grpo_pipeline.answers.verdicts import CHECKER_VERSION, REASONS, Check, Mode, Verdict, count_reasons

__all__ = [
    "CHECKER_VERSION",
    "REASONS",
    "Check",
    "Mode",
    "Verdict",
    "check",
    "check_gold",
    "check_many",
    "count_reasons",
    "extract_answer",
    "is_correct",
]
