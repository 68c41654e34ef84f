"""`first_error`: walk the steps in order up to the first bad one, as PRM800K's labellers did.

A step is sampled in waves up to its first success; the solution ends at its first step without one in N.
With the same draws the hard labels equal brute force's up to and including the first zero, exactly. Later
steps are unlabelled, or 0 by a setting (Lightman et al. 2023, arXiv 2305.20050, section 2.4; Zhang et al.
2025, arXiv 2501.07301).
"""

from grpo_pipeline.labelling.schedules.base import (
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


def first_error(solution: Solution, look: Look, settings: Settings) -> Schedule:
    """Complete steps in order until one is bad. A step that stays undecided is passed over."""
    decisions: list[Decision] = []
    for step in range(solution.n_steps):
        if is_end(solution, step):
            decision = outcome_of(solution)
        elif solution.open[step]:
            decision = yield from until_success(step, look, settings)
        else:
            decision = UNLABELLED
        decisions.append(decision)
        if decision.hard == 0:
            break
    return decisions + [after_error(settings)] * (solution.n_steps - len(decisions))
