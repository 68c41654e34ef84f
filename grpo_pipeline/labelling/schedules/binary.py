"""`binary`: binary search for the first bad step (OmegaPRM, Luo et al. 2024, arXiv 2406.06592, section 3.2).

About log2(K) prefixes are completed instead of K. A success at a step implies that all before it are good; N
draws without one are taken to mean that all after it are bad. That second half is not sure: a false zero
sends the search to the wrong side, so these labels may differ from brute force's. How often they do is
measured in benchmarks/labelling.py.
"""

from grpo_pipeline.labelling.schedules.base import (
    IMPLIED_GOOD,
    UNLABELLED,
    Decision,
    Look,
    Schedule,
    Settings,
    Solution,
    after_error,
    is_end,
    outcome_of,
    until_success,
)


def binary(solution: Solution, look: Look, settings: Settings) -> Schedule:
    """Search for the first bad step; a step that stays undecided is taken out of the search."""
    decided: dict[int, Decision] = {}
    last = solution.n_steps - 1
    if is_end(solution, last):
        decided[last] = outcome_of(solution)
        if solution.outcome == 1:
            return [IMPLIED_GOOD] * last + [decided[last]]
    candidates = [step for step in range(solution.n_steps) if solution.open[step]]
    last_good, first_bad = -1, last if decided.get(last, UNLABELLED).hard == 0 else None
    while candidates:
        step = candidates[(len(candidates) - 1) // 2]
        decided[step] = yield from until_success(step, look, settings)
        if decided[step].hard == 1:
            last_good = step
            candidates = [other for other in candidates if other > step]
        elif decided[step].hard == 0:
            first_bad = step
            candidates = [other for other in candidates if other < step]
        else:
            candidates.remove(step)
    return [_label(step, decided, last_good, first_bad, settings) for step in range(solution.n_steps)]


def _label(
    step: int, decided: dict[int, Decision], last_good: int, first_bad: int | None, settings: Settings
) -> Decision:
    if first_bad is not None and step > first_bad:
        return after_error(settings)
    if step in decided and decided[step].hard is not None:
        return decided[step]
    return IMPLIED_GOOD if step < last_good else decided.get(step, UNLABELLED)
