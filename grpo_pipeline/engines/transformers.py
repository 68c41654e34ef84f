"""The transformers engine: the embedded default, on CPU or GPU, over a model that a trainer may share."""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import torch

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines.cache import CacheShape
from grpo_pipeline.engines.decode import FastDecoder
from grpo_pipeline.engines.eos import model_eos_ids
from grpo_pipeline.engines.outputs import Outputs, check_prompts
from grpo_pipeline.engines.plain import decode_plain
from grpo_pipeline.engines.protocol import OnResult, Request, Sample, SamplingParams, TokenizerLike
from grpo_pipeline.engines.steps import DecodeStep, cache_shape, choose_step
from grpo_pipeline.engines.stopping import StopRules
from grpo_pipeline.models.loading import load_policy, load_tokenizer

_LOG = logging.getLogger(__name__)


class TransformersEngine:
    """An engine over a live transformers model (see `protocol.Engine`).

    The module is shared, never copied: a trainer updates its weights in place and says so with
    `set_version`. Dropout is off while generating, and the module's training flags come back after.

    Args:
        model: A causal language model on its device.
        tokenizer: Its tokenizer.
        model_id: Content id of the weights.
        config: `decode` chooses the fast or the plain loop; `max_batch` bounds the rows at once.
    """

    def __init__(self, model: Any, tokenizer: TokenizerLike, model_id: str, config: EngineConfig) -> None:
        self.model = model
        self.model_id = model_id
        self.max_model_len = _context_limit(model, config)
        self._tokenizer = tokenizer
        self._config = config
        self._eos_ids = model_eos_ids(model, tokenizer)
        self._step: DecodeStep | None = None
        self._shape: CacheShape | None = None
        self._plain_only = False
        self._turn = threading.Lock()

    @classmethod
    def load(cls, folder: Path, model_config: ModelConfig, engine_config: EngineConfig, model_id: str = "") -> Self:
        """Load a model folder with its tokenizer.

        Raises:
            UserError: Where something is missing in the folder, or the device is not there.
        """
        trust = model_config.trust_remote_code
        model = load_policy(folder, dtype=model_config.dtype, device=model_config.device, trust_remote_code=trust)
        tokenizer = cast(TokenizerLike, load_tokenizer(folder, trust_remote_code=trust))
        return cls(model, tokenizer, model_id or str(folder), engine_config)

    @property
    def tokenizer(self) -> TokenizerLike:
        """The model's tokenizer."""
        return self._tokenizer

    def set_version(self, model_id: str) -> None:
        """Say that the shared module's weights are another version now."""
        self.model_id = model_id

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], model_id: str) -> None:
        """Take new weights into an engine that shares its module with nobody.

        Args:
            weights: Name and tensor of every weight, as `named_parameters` names them.
            model_id: Id of the new version.
        """
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, weight in weights:
                own[name].copy_(weight)
        self.model_id = model_id

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, on_result: OnResult | None = None
    ) -> list[list[Sample]]:
        """Sample every request (see `protocol.Engine.generate`); calls from several threads take turns."""
        check_prompts(requests, self.max_model_len)
        rules = StopRules(self._tokenizer, self._eos_ids, sampling.stop)
        outputs = Outputs(requests, rules, on_result)
        with self._turn, torch.inference_mode(), _evaluating(self.model):
            decoder = self._fast_decoder() if self._config.decode == "fast" else None
            if decoder is not None:
                decoder.decode(requests, sampling, rules, outputs)
            else:
                decode_plain(
                    self.model,
                    requests,
                    sampling,
                    rules,
                    outputs,
                    max_model_len=self.max_model_len,
                    max_batch=self._config.max_batch,
                )
        return outputs.results()

    def _fast_decoder(self) -> FastDecoder | None:
        """None for a model that the fast decode cannot run; found out at the first call."""
        if self._step is None and not self._plain_only:
            shape = cache_shape(self.model)
            step = None if shape is None else choose_step(self.model, shape)
            self._plain_only = step is None
            if step is None or shape is None:
                _LOG.warning("%s: decoding with the plain loop, the fast one cannot run it", type(self.model).__name__)
            else:
                self._step, self._shape = step, shape
        if self._step is None or self._shape is None:
            return None
        return FastDecoder(self.model, self._step, self._shape, self.max_model_len, self._config.max_batch)

    def close(self) -> None:
        """Let go of the model; memory is freed once nobody else holds it."""
        self.model = None
        self._step = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _context_limit(model: Any, config: EngineConfig) -> int:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    candidates = [value for value in (limit, config.max_model_len) if value is not None]
    if not candidates:
        raise ValueError("the model's config names no context length; set engine.max_model_len")
    return min(candidates)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Dropout off; afterwards every submodule has its own training flag again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
