"""`soft_adaptive`: soft labels with as many draws as their uncertainty asks for.

Each step is sampled in waves until the 95% Wilson interval of its soft label is narrower than a given width,
or N is reached. Steps near 0 or 1 stop early, steps in the middle take all N. No counts are borrowed across
prefixes. Stopping on the data makes the share of a stopped step slightly extreme; the width bounds by how
much.
"""

from grpo_pipeline.labelling.evidence import wilson_interval
from grpo_pipeline.labelling.schedules.base import (
    UNLABELLED,
    Decision,
    Look,
    Schedule,
    Settings,
    Solution,
    is_end,
    outcome_of,
    sampled,
)


def soft_adaptive(solution: Solution, look: Look, settings: Settings) -> Schedule:
    """Complete every step until its soft label is known well enough."""
    drawn = dict.fromkeys((step for step in range(solution.n_steps) if solution.open[step]), 0)
    unsure = set(drawn)
    while unsure:
        for step in unsure:
            drawn[step] = min(drawn[step] + settings.wave, settings.completions)
        yield {step: drawn[step] for step in sorted(unsure)}
        unsure = {step for step in unsure if not _is_sure(step, drawn[step], look, settings)}
    decisions: list[Decision] = []
    for step in range(solution.n_steps):
        if is_end(solution, step):
            decisions.append(outcome_of(solution))
        elif step in drawn:
            decisions.append(sampled(step, drawn[step], look, settings, has_soft=True))
        else:
            decisions.append(UNLABELLED)
    return decisions


def _is_sure(step: int, n: int, look: Look, settings: Settings) -> bool:
    if n >= settings.completions:
        return True
    tally = look(step, n)
    low, high = wilson_interval(tally.n_correct, tally.counted(settings.truncated))
    return high - low < settings.interval_width
