"""Online RFT: RFT on responses of the current policy (Shao et al. 2024, section 5.2.1; METHOD 5).

Data: rollouts of the current policy, sampled afresh at each exploration step. Reward: the checker's verdict.
Coefficient: 1 if correct else 0, as RFT's; the data source is the whole difference.
"""

from grpo_pipeline.methods.base import DataSource
from grpo_pipeline.methods.rft import Rft


class OnlineRft(Rft):
    """RFT whose samples come from the policy as it is now."""

    name = "online_rft"
    data: DataSource = "on_policy"
