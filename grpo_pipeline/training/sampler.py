"""The engine that samples while a policy trains, and how it is given new weights.

| engine.kind | weights |
|---|---|
| transformers | the module is shared with the trainer; sharded training (FSDP2) keeps a whole copy in each process |
| vllm | a copy inside vLLM, updated in place; its prefix cache is emptied |
| server | refused (`policy_contract.check_inputs`): nothing can be handed over |

Weights are handed over before an exploration step, not after every update: several updates on the same rollouts
cost one hand-over.
"""

from pathlib import Path
from typing import Any

from grpo_pipeline.config import RunConfig
from grpo_pipeline.engines.opening import open_engine
from grpo_pipeline.engines.protocol import Engine
from grpo_pipeline.engines.transformers import TransformersEngine
from grpo_pipeline.training.actor import Actor
from grpo_pipeline.training.processes import Processes


class Sampler:
    """An engine over the policy under training.

    Args:
        actor: The policy.
        folder: The folder that it was loaded from.
        config: Which engine.
        policy_id: Content id of that folder.
        samples: Whether anything will be sampled: SFT opens no engine of its own.
        processes: Whether weights are sharded.

    Attributes:
        engine: Samples with the weights that were handed over last.
    """

    def __init__(
        self, actor: Actor, folder: Path, config: RunConfig, policy_id: str, *, samples: bool, processes: Processes
    ) -> None:
        self._actor = actor
        self._own: Any = None  # an engine with weights of its own
        if samples and config.engine.kind == "vllm":
            self._own = open_engine(folder, config.model, config.engine, policy_id)
        elif samples and processes.is_sharded:
            self._own = TransformersEngine.load(folder, config.model, config.engine, policy_id)
        self._shared = TransformersEngine(actor.model, actor.tokenizer, policy_id, config.engine)
        self.engine: Engine = self._own or self._shared

    def hand_over(self, version: str) -> None:
        """Sample from the policy's present weights from now on; all processes call it.

        Args:
            version: What rollouts are stamped with.
        """
        if self.engine.model_id == version:
            return
        if self._own is None:
            self._shared.set_version(version)
        else:
            self._own.update_weights(self._actor.weights(), version)

    def close(self) -> None:
        """Free the engine and end its processes."""
        self.engine.close()
