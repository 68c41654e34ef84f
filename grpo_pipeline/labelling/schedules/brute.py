"""`brute`: N completions of every prefix, as Math-Shepherd does it; the reference for all other schedules."""

from grpo_pipeline.labelling.schedules.base import (
    UNLABELLED,
    Look,
    Schedule,
    Settings,
    Solution,
    is_end,
    outcome_of,
    sampled,
)


def brute(solution: Solution, look: Look, settings: Settings) -> Schedule:
    """Complete every step N times."""
    n = settings.completions
    asks = {step: n for step in range(solution.n_steps) if solution.open[step]}
    if asks:
        yield asks
    decisions = []
    for step in range(solution.n_steps):
        if is_end(solution, step):
            decisions.append(outcome_of(solution))
        elif solution.open[step]:
            decisions.append(sampled(step, n, look, settings, has_soft=True))
        else:
            decisions.append(UNLABELLED)
    return decisions
