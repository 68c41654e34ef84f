"""Gets draws of prefixes: from the ledger where they are there, else from the engine, and has them checked."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from grpo_pipeline.engines.protocol import Engine, Request, Sample, SamplingParams, TokenizerLike
from grpo_pipeline.labelling.evidence import Kind, Tally, kind_of
from grpo_pipeline.labelling.ledger import CompletionLedger, Draw, PrefixKey
from grpo_pipeline.labelling.prefixes import continuation_text, ends_at_once, prefix_text
from grpo_pipeline.progress import Bar
from grpo_pipeline.rollouts import Checker, run_checker
from grpo_pipeline.seeds import derive_seed

_log = logging.getLogger(__name__)
_POLL_S = 0.1


@dataclass(slots=True)
class Prefix:
    """A prefix that is completed, shared by all solutions that begin with the same tokens and gold answer.

    Attributes:
        key: Its place in the ledger.
        rollout_id, problem_id, step_index: The first solution and step that it was met in.
        prompt, response: Its token ids.
        max_tokens: Tokens of a completion at most.
        gold_answer: What completions are checked against.
        draws: The draws asked for so far, by index.
        kinds: What each came to.
        n_asked: How many draws, from index 0, any solution asked for.
    """

    key: PrefixKey
    rollout_id: str
    problem_id: str
    step_index: int
    prompt: Sequence[int]
    response: Sequence[int]
    max_tokens: int
    gold_answer: str
    draws: dict[int, Draw] = field(default_factory=dict)
    kinds: list[Kind] = field(default_factory=list)
    n_asked: int = 0

    def tally(self, n: int) -> Tally:
        """Counts of the first n draws."""
        if n > len(self.kinds):
            raise ValueError(f"draws 0..{n - 1} of prefix {self.key.prefix_hash} were not all asked for")
        return Tally.of(self.kinds[:n])


@dataclass
class Costs:
    """What getting the draws took.

    Attributes:
        completions_sampled, tokens_sampled: By the engine, in this run.
        completions_reused, tokens_reused: Found in the ledger.
        engine_seconds, check_seconds: Wall clock.
    """

    completions_sampled: int = 0
    tokens_sampled: int = 0
    completions_reused: int = 0
    tokens_reused: int = 0
    engine_seconds: float = 0.0
    check_seconds: float = 0.0


class Completer:
    """Fills prefixes with draws.

    Draw i of a prefix is seeded by (run seed, completer, prefix, i), so it is the same whichever schedule
    asks for it, and whenever.

    Args:
        engine: The completer's engine.
        sampling: Temperature, top_p and stop strings; max_tokens is each prefix's own.
        seed: The run's seed.
        ledger: Where every sampled completion is kept.
        checker: Checks (gold answers, texts).
        checker_version: Version of the checking rules; a draw checked by others is checked again.
    """

    def __init__(
        self,
        engine: Engine,
        sampling: SamplingParams,
        *,
        seed: int,
        ledger: CompletionLedger,
        checker: Checker,
        checker_version: str,
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._seed = seed
        self._ledger = ledger
        self._checker = checker
        self._checker_version = checker_version
        self._claimant = ledger.new_claimant()
        self.costs = Costs()

    def fill(self, wanted: Iterable[tuple[Prefix, int]], bar: Bar) -> None:
        """See to it that each prefix has its first n draws, checked.

        Args:
            wanted: Pairs of prefix and n.
            bar: Told how many draws have come.
        """
        prefixes = []
        for prefix, n in wanted:
            if n > prefix.n_asked:
                prefix.n_asked = n
                self._recall(prefix, bar)
                prefixes.append(prefix)
        self._complete([prefix for prefix in prefixes if len(prefix.draws) < prefix.n_asked], bar)
        self._check(prefixes)
        for prefix in prefixes:
            draws = [prefix.draws[index] for index in range(len(prefix.kinds), prefix.n_asked)]
            prefix.kinds += [kind_of(draw.finish_reason, str(draw.verdict)) for draw in draws]

    def _recall(self, prefix: Prefix, bar: Bar) -> None:
        for draw in self._ledger.find(prefix.key, len(prefix.kinds), prefix.n_asked):
            if draw.index not in prefix.draws:
                prefix.draws[draw.index] = draw
                self.costs.completions_reused += 1
                self.costs.tokens_reused += draw.n_tokens
                bar.advance()

    def _complete(self, prefixes: list[Prefix], bar: Bar) -> None:
        """Sample what is missing; what another worker is sampling is waited for, once our own share is done."""
        waiting, said = prefixes, False
        while waiting:
            mine = self._ledger.claim((prefix.key for prefix in waiting), self._claimant)
            try:
                # Another worker may have sampled a prefix between our look and our claim.
                waiting = self._still_missing(waiting, bar)
                # One question with two gold answers is two prefixes with the same draws.
                ours = {prefix.key: prefix for prefix in reversed(waiting) if prefix.key in mine}
                self._sample(list(ours.values()), bar)
            finally:
                self._ledger.release(mine, self._claimant)
            waiting = self._still_missing(waiting, bar)
            if waiting and not ours:
                if not said:
                    _log.info("%d prefixes are being completed by another worker; waiting for it", len(waiting))
                    said = True
                time.sleep(_POLL_S)

    def _still_missing(self, prefixes: list[Prefix], bar: Bar) -> list[Prefix]:
        missing = [prefix for prefix in prefixes if len(prefix.draws) < prefix.n_asked]
        for prefix in missing:
            self._recall(prefix, bar)
        return [prefix for prefix in missing if len(prefix.draws) < prefix.n_asked]

    def _sample(self, prefixes: list[Prefix], bar: Bar) -> None:
        if not prefixes:
            return
        # Prefixes of one problem, and the growing prefixes of one solution, stand side by side: an engine
        # that caches prefixes computes the shared part once.
        prefixes.sort(key=lambda prefix: [*prefix.prompt, *prefix.response])
        missing = [[i for i in range(prefix.n_asked) if i not in prefix.draws] for prefix in prefixes]
        requests = [
            Request([*prefix.prompt, *prefix.response], [self._draw_seed(prefix, index) for index in indices])
            for prefix, indices in zip(prefixes, missing, strict=True)
        ]
        # All go in one call with the largest limit; a sample beyond its own prefix's limit is cut there, which
        # gives what a call with that limit would have given.
        sampling = replace(self._sampling, max_tokens=max(prefix.max_tokens for prefix in prefixes))

        def keep(request: int, samples: list[Sample]) -> None:
            prefix, seeds = prefixes[request], requests[request].seeds
            so_far = prefix_text(self._engine.tokenizer, prefix.response)
            draws = [
                self._draw(prefix, so_far, index, seed, sample)
                for index, seed, sample in zip(missing[request], seeds, samples, strict=True)
            ]
            self._ledger.add(prefix.key, draws, self._claimant)
            prefix.draws.update({draw.index: draw for draw in draws})
            self.costs.completions_sampled += len(draws)
            self.costs.tokens_sampled += sum(draw.n_tokens for draw in draws)
            bar.advance(len(draws))

        start = time.perf_counter()
        self._engine.generate(requests, sampling, keep)
        self.costs.engine_seconds += time.perf_counter() - start

    def _draw_seed(self, prefix: Prefix, index: int) -> int:
        return derive_seed(self._seed, "completions", prefix.key.completer_id, prefix.key.prefix_hash, index)

    def _draw(self, prefix: Prefix, so_far: str, index: int, seed: int, sample: Sample) -> Draw:
        sample = cut(sample, prefix.max_tokens, self._engine.tokenizer)
        text = continuation_text(self._engine.tokenizer, so_far, prefix.response, sample)
        finish_reason = sample.finish_reason
        if ends_at_once(so_far, text, self._sampling.stop):
            text, finish_reason = "", "stop"
        return Draw(
            index=index,
            rollout_id=prefix.rollout_id,
            problem_id=prefix.problem_id,
            step_index=prefix.step_index,
            n_tokens=len(sample.token_ids),
            text=text,
            finish_reason=finish_reason,
            seed=seed,
            verdict="no_answer" if finish_reason == "length" else None,
        )

    def _check(self, prefixes: list[Prefix]) -> None:
        """Check draws that no checker of this version has seen against this gold answer.

        What is checked is the solution so far with the continuation, since an answer may stand in the prefix.
        A cut-off draw is not checked: it is undecided.
        """
        start = time.perf_counter()
        unchecked: list[tuple[Prefix, Draw]] = []
        for prefix in prefixes:
            for index in range(len(prefix.kinds), prefix.n_asked):
                draw = prefix.draws[index]
                by_us = (draw.gold_answer, draw.checker_version) == (prefix.gold_answer, self._checker_version)
                if draw.finish_reason == "stop" and not by_us:
                    unchecked.append((prefix, draw))
        so_far = {prefix.key: prefix_text(self._engine.tokenizer, prefix.response) for prefix, _ in unchecked}
        texts = [so_far[prefix.key] + draw.text for prefix, draw in unchecked]
        checks = run_checker(self._checker, [prefix.gold_answer for prefix, _ in unchecked], texts)
        for (prefix, draw), check in zip(unchecked, checks, strict=True):
            draw.answer, draw.verdict = check.answer, check.verdict
            draw.gold_answer, draw.checker_version = prefix.gold_answer, self._checker_version
        self._ledger.set_verdicts((prefix.key, draw) for prefix, draw in unchecked)
        self.costs.check_seconds += time.perf_counter() - start


def cut(sample: Sample, max_tokens: int, tokenizer: TokenizerLike) -> Sample:
    """The sample as a limit of max_tokens would have ended it."""
    if len(sample.token_ids) <= max_tokens:
        return sample
    kept = sample.token_ids[:max_tokens]
    text = tokenizer.decode(kept.tolist(), skip_special_tokens=True)
    return Sample(kept, sample.logprobs[:max_tokens], text, "length")
