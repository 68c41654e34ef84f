"""What is shown at a round's end, of every kind of reward model."""

import pytest

from grpo_pipeline.report.curves import plot_rounds
from grpo_pipeline.stages.summary import OUTCOME_FIGURES, PRM_FIGURES, round_table

POLICY = {"round": 0, "accuracy": 0.5, "accuracy_se": 0.1, "problems": 8, "greedy": 0.25}
STAGES = [{"name": "policy", "round": 0, "rows": 3, "tokens": 7, "seconds": 1.25}]


@pytest.mark.parametrize(
    ("figures", "columns"),
    [
        (PRM_FIGURES, {"prm_step_accuracy", "prm_auc", "prm_auc_on_policy", "hard_label_accuracy"}),
        (OUTCOME_FIGURES, set(OUTCOME_FIGURES)),
    ],
)
def test_a_round_has_the_figures_of_its_reward_model(figures, columns):
    prm = {"round": 0, **dict.fromkeys(figures, 0.75), "replay_share": 0.0, "replay_rounds": {}}
    summary = {"rounds": [POLICY], "prms": [prm], "stages": STAGES}
    (row,) = round_table(summary)
    assert row == POLICY | dict.fromkeys(columns, 0.75) | {"replay_share": 0.0, "tokens": 7, "seconds": 1.2}
    assert plot_rounds([], summary).startswith(b"\x89PNG")
