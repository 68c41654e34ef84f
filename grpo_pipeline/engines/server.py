"""The server engine: an OpenAI-compatible server (`vllm serve`), here or elsewhere; token ids in and out.

Requests run on an event loop in a thread of its own, at most `engine.concurrency` at once, so that `generate`
may be called from any thread. Each seed is one HTTP request: a sample is then a function of its request
alone, and the server's prefix cache shares the prompt.
"""

import asyncio
import os
import queue
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import httpx

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines.eos import folder_eos_ids
from grpo_pipeline.engines.outputs import Outputs, check_prompts
from grpo_pipeline.engines.protocol import OnResult, Request, Sample, SamplingParams, TokenizerLike
from grpo_pipeline.engines.stopping import StopRules
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.loading import load_tokenizer

KEY_VARIABLE = "GRPO_PIPELINE_SERVER_KEY"
"""Environment variable with the server's API key (`vllm serve --api-key`)."""

_PROBE = "Tom has 12 apples.\n3 * 4 = 12, naïve café 数学 😀 #### x^2"
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_TIMEOUT = httpx.Timeout(600.0, connect=10.0)


@dataclass(frozen=True)
class Retry:
    """How failed requests are tried again: on 429, 5xx, and broken or refused connections.

    Attributes:
        attempts: Tries in all.
        first_wait_s: Seconds before the second try; doubled each time, with up to a half more at random.
        longest_wait_s: Limit of one wait, also of the one that the server asks for (Retry-After).
    """

    attempts: int = 7
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def wait_s(self, attempt: int, asked: str | None) -> float:
        """Seconds to wait after failed try number `attempt` (0-based)."""
        if asked is not None and asked.isdigit():
            return min(float(asked), self.longest_wait_s)
        wait = min(self.first_wait_s * 2**attempt, self.longest_wait_s)
        return float(wait * (1 + random.random() / 2))


class ServerEngine:
    """An engine over a server (see `protocol.Engine`); open it with `connect`.

    Args:
        base_url: The server's /v1 address.
        served_name: Name that the server gives the model.
        tokenizer: The model's tokenizer.
        eos_ids: Token ids that end a response.
        model_id: Content id of the weights.
        max_model_len: Context limit.
        concurrency: Requests under way at once.
        retry: How failures are tried again.
    """

    def __init__(
        self,
        base_url: str,
        served_name: str,
        tokenizer: TokenizerLike,
        eos_ids: frozenset[int],
        *,
        model_id: str,
        max_model_len: int,
        concurrency: int,
        retry: Retry | None = None,
    ) -> None:
        self.model_id = model_id
        self.max_model_len = max_model_len
        self._url = base_url.rstrip("/") + "/completions"
        self._served_name = served_name
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._concurrency = concurrency
        self._retry = retry or Retry()
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @classmethod
    def connect(
        cls, folder: Path, model: ModelConfig, engine: EngineConfig, model_id: str, retry: Retry | None = None
    ) -> Self:
        """Connect, after making sure that the server has the model and the tokenizer of `folder`.

        Raises:
            UserError: If it is not reachable, or serves another model, or tokenises differently.
        """
        if engine.base_url is None:
            raise UserError("engine.base_url is not set")
        tokenizer = load_tokenizer(folder, trust_remote_code=model.trust_remote_code)
        with httpx.Client(timeout=_TIMEOUT, headers=_authorization()) as client:
            served = find_model(client, engine.base_url, {model_id, str(folder), str(folder.resolve()), model.path})
            compare_tokenizers(client, engine.base_url, served["id"], tokenizer)
        limits = [limit for limit in (served.get("max_model_len"), engine.max_model_len) if limit is not None]
        if not limits:
            raise UserError(f"{engine.base_url} does not say its context limit; set engine.max_model_len")
        return cls(
            engine.base_url,
            served["id"],
            cast(TokenizerLike, tokenizer),
            folder_eos_ids(folder, cast(TokenizerLike, tokenizer)),
            model_id=model_id,
            max_model_len=min(limits),
            concurrency=engine.concurrency,
            retry=retry,
        )

    @property
    def tokenizer(self) -> TokenizerLike:
        """The model's tokenizer."""
        return self._tokenizer

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, on_result: OnResult | None = None
    ) -> list[list[Sample]]:
        """Sample every request (see `protocol.Engine.generate`); `on_result` runs in the calling thread.

        Raises:
            UserError: If the server refuses a request, stays away, or answers without token ids.
        """
        check_sampling(sampling)
        check_prompts(requests, self.max_model_len)
        rules = StopRules(self._tokenizer, self._eos_ids, sampling.stop)
        outputs = Outputs(requests, rules, on_result)
        answers: queue.SimpleQueue[tuple[int, int, dict[str, Any]] | None] = queue.SimpleQueue()
        future = asyncio.run_coroutine_threadsafe(self._run(requests, sampling, answers), self._loop)
        future.add_done_callback(lambda _: answers.put(None))
        try:
            while (answer := answers.get()) is not None:
                request, sample, choice = answer
                token_ids, logprobs = read_choice(choice, self._url)
                stopped = choice["finish_reason"] == "stop"
                outputs.add(request, sample, token_ids, logprobs, "stop" if stopped else "length")
        finally:
            future.cancel()
        try:
            future.result()
        except ExceptionGroup as group:  # the workers fail alike; the first says it
            raise group.exceptions[0] from None
        return outputs.results()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _run(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        answers: "queue.SimpleQueue[tuple[int, int, dict[str, Any]] | None]",
    ) -> None:
        work = (
            (index, sample, request.prompt_token_ids, seed)
            for index, request in enumerate(requests)
            for sample, seed in enumerate(request.seeds)
        )
        limits = httpx.Limits(max_connections=self._concurrency)
        headers = _authorization()
        async with (
            httpx.AsyncClient(timeout=_TIMEOUT, limits=limits, headers=headers) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._concurrency):
                group.create_task(self._work(client, work, sampling, answers))

    async def _work(
        self,
        client: httpx.AsyncClient,
        work: Iterator[tuple[int, int, Sequence[int], int]],
        sampling: SamplingParams,
        answers: "queue.SimpleQueue[tuple[int, int, dict[str, Any]] | None]",
    ) -> None:
        for index, sample, prompt, seed in work:  # one iterator, shared by all workers of the loop
            body = {
                "model": self._served_name,
                "prompt": list(prompt),
                "seed": seed,
                "n": 1,
                "max_tokens": min(sampling.max_tokens, self.max_model_len - len(prompt)),
                "temperature": sampling.temperature,
                "stop": list(sampling.stop),
                "stop_token_ids": sorted(self._eos_ids),
                "logprobs": 0,
                "return_token_ids": True,
                # Against defaults that the model's generation config would bring in.
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
            }
            answers.put((index, sample, await self._post(client, body)))

    async def _post(self, client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
        failure = ""
        for attempt in range(self._retry.attempts):
            asked = None
            try:
                response = await client.post(self._url, json=body)
            except httpx.TransportError as error:
                failure = f"{type(error).__name__} {error}".strip()
            else:
                if response.status_code == httpx.codes.OK:
                    choice: dict[str, Any] = response.json()["choices"][0]
                    return choice
                failure = f"{response.status_code} {response.text[:500]}"
                if response.status_code not in _RETRIED:
                    raise UserError(f"{self._url} refused a request: {failure}")
                asked = response.headers.get("retry-after")
            if attempt + 1 < self._retry.attempts:
                await asyncio.sleep(self._retry.wait_s(attempt, asked))
        raise UserError(
            f"{self._url} failed {self._retry.attempts} times, last with: {failure}. Is the server up and well? "
            "What was sampled so far is kept; start again to go on."
        )


def _authorization() -> dict[str, str]:
    """The header with the server's key, which comes from the environment alone and so is in no file of a run."""
    key = os.environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def check_sampling(sampling: SamplingParams) -> None:
    """Refuse top_p below 1: vLLM gives log-probabilities after that cut, ours are those before it."""
    if sampling.top_p < 1.0:
        raise UserError(
            f"sampling.top_p = {sampling.top_p}: vLLM reports log-probabilities after the top_p cut, which training "
            "cannot use; set top_p = 1, or engine.kind = 'transformers'"
        )


def find_model(client: httpx.Client, base_url: str, names: set[str]) -> dict[str, Any]:
    """The server's entry for a model of one of these names.

    Raises:
        UserError: If the server cannot be reached, or has no such model.
    """
    url = base_url.rstrip("/") + "/models"
    try:
        response = client.get(url)
        response.raise_for_status()
        models: list[dict[str, Any]] = response.json()["data"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise UserError(
            f"{url}: no OpenAI-compatible server answers there ({error}); start one with "
            f"`grpo-pipeline serve-completer`, or correct engine.base_url; one that asks for a key gets it from "
            f"{KEY_VARIABLE}"
        ) from None
    for model in models:
        if names & {model["id"], model.get("root")}:
            return model
    raise UserError(
        f"{base_url} serves {', '.join(sorted(model['id'] for model in models))}, but this run expects one of "
        f"{', '.join(sorted(names))}; serve that model (`grpo-pipeline serve-completer`), or correct engine.base_url"
    )


def compare_tokenizers(client: httpx.Client, base_url: str, model: str, tokenizer: Any) -> None:
    """Raise a UserError unless the server tokenises a probe as the local tokenizer does."""
    url = base_url.rstrip("/").removesuffix("/v1") + "/tokenize"
    ours = list(tokenizer.encode(_PROBE, add_special_tokens=False))
    try:
        response = client.post(url, json={"model": model, "prompt": _PROBE, "add_special_tokens": False})
        response.raise_for_status()
        theirs = response.json()["tokens"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise UserError(f"{url}: the server's tokenizer cannot be compared with ours ({error})") from None
    if theirs != ours:
        raise UserError(
            f"{base_url} has another tokenizer than the model folder: {_PROBE!r} is {theirs[:8]}... there and "
            f"{ours[:8]}... here; serve the run's own model folder"
        )


def read_choice(choice: dict[str, Any], url: str) -> tuple[list[int], list[float]]:
    """Token ids and log-probabilities of a completion choice."""
    token_ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    if token_ids is None or logprobs is None or len(token_ids) != len(logprobs):
        raise UserError(
            f"{url} gave no token ids with log-probabilities (return_token_ids, logprobs); a vLLM server of 0.10 or "
            "later does"
        )
    return token_ids, logprobs
