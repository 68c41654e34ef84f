"""`closure`: hard labels of all steps under monotone existence, working back from the end.

A correct continuation found from a prefix, or a correct end, proves that every earlier prefix has one too
(METHOD 1). So the last step with a success implies 1 for all before it, which need no completion. The labels
equal brute force's after the same closure (`close_labels`), exactly.
"""

from collections.abc import Sequence

from grpo_pipeline.labelling.schedules.base import (
    IMPLIED_GOOD,
    UNLABELLED,
    Decision,
    Look,
    Schedule,
    Settings,
    Solution,
    is_end,
    outcome_of,
    until_success,
)


def closure(solution: Solution, look: Look, settings: Settings) -> Schedule:
    """Complete steps from the last to the first until one is good; all before it are implied good."""
    late: list[Decision] = []  # from the last step backwards
    for step in reversed(range(solution.n_steps)):
        if is_end(solution, step):
            decision = outcome_of(solution)
        elif solution.open[step]:
            decision = yield from until_success(step, look, settings)
        else:
            decision = UNLABELLED
        late.append(decision)
        if decision.hard == 1:
            break
    return [IMPLIED_GOOD] * (solution.n_steps - len(late)) + late[::-1]


def close_labels(hard: Sequence[int | None]) -> list[int | None]:
    """The closure of hard labels: a step before a good one is good; the others stay as they are."""
    last_good = max((step for step, label in enumerate(hard) if label == 1), default=-1)
    return [1 if step <= last_good else label for step, label in enumerate(hard)]
