"""How a PRM wants a question and steps written: its prompt, its separators, and the tokens where it is read.

For solutions that come as text (ProcessBench, PRM800K, others' rollouts). Own rollouts never pass here: they are
scored on their sampled tokens (`models.scoring`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from grpo_pipeline.errors import UserError
from grpo_pipeline.models.reward import RewardModel, single_token
from grpo_pipeline.models.scoring import judge, sigmoid
from grpo_pipeline.prompts import DEFAULT_TEMPLATE, PromptBuilder

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class EncodedSolution:
    """A solution as a PRM reads it.

    Attributes:
        input_ids: (T,) int32.
        positions: (K,) int32 index of the token where each of the K steps is judged.
    """

    input_ids: Ids
    positions: Ids


class SolutionForm(Protocol):
    """A PRM's way to write a solution."""

    def encode(self, question: str, steps: Sequence[str]) -> EncodedSolution:
        """Token ids with one judged position a step.

        Raises:
            UserError: A separator is not one token, or the judged positions are not as many as the steps.
        """
        ...


def score_texts(
    model: RewardModel,
    form: SolutionForm,
    solutions: Sequence[tuple[str, Sequence[str]]],
    *,
    tokens_per_batch: int = 16384,
) -> list[npt.NDArray[np.float32]]:
    """p(step good) of every step of solutions given as (question, steps); one array a solution, in order.

    Raises:
        UserError: A solution cannot be written in this form, or does not fit the model's context or the memory.
    """
    encoded = []
    for index, (question, steps) in enumerate(solutions):
        solution = form.encode(question, steps)
        if len(solution.positions) != len(steps):
            raise UserError(
                f"solution {index}: {len(solution.positions)} label positions for {len(steps)} steps; the separator "
                "occurs in the question or in a step, or the steps are empty"
            )
        encoded.append(solution)
    logits = judge(model, [s.input_ids for s in encoded], [s.positions for s in encoded], tokens_per_batch)
    return [sigmoid(row) for row in logits]


@dataclass(frozen=True)
class StepwiseForm:
    """Question, then each step with a separator after it, judged at the step's last token; own PRMs and TRL's.

    Each step is tokenised by itself, as TRL's PRMTrainer does, so that a step's last token is its own.

    Attributes:
        tokenizer: The PRM's.
        template: Text around the question.
        prompt: Writes the prompt as a run's rollouts have it (template, chat, worked examples), in place of `template`.
        separator: Text after a step.
        trl: As TRL's PRMTrainer writes it: BOS first wherever the tokenizer has one, a separator after the last
            step too. Otherwise as our rollouts are: the special tokens that the tokenizer adds by itself, no
            separator at the end.
    """

    tokenizer: PreTrainedTokenizerBase
    template: str = DEFAULT_TEMPLATE
    prompt: PromptBuilder | None = None
    separator: str = "\n"
    trl: bool = False

    def encode(self, question: str, steps: Sequence[str]) -> EncodedSolution:
        """See `SolutionForm`."""
        if self.prompt is not None:
            ids = self.prompt.encode(question)
        else:
            text = self.template.replace("{question}", question)
            ids = list(self.tokenizer.encode(text, add_special_tokens=not self.trl))
        if self.trl and self.tokenizer.bos_token_id is not None:
            ids = [int(self.tokenizer.bos_token_id), *ids]
        positions = []
        for index, step in enumerate(steps):
            text = step + self.separator if self.trl or index < len(steps) - 1 else step
            pieces = self.tokenizer.encode(text, add_special_tokens=False)
            if not pieces:
                raise UserError(f"step {index} is empty: there is no token to judge it at")
            ids = [*ids, *pieces]
            positions.append(len(ids) - 1)
        return EncodedSolution(np.array(ids, np.int32), np.array(positions, np.int32))


@dataclass(frozen=True)
class TagForm:
    """Math-Shepherd's: "question step1 ки", line break, "step2 ки", judged at each tag (its model card).

    Attributes:
        tokenizer: The PRM's.
        tag: The step tag; must be one token.
    """

    tokenizer: PreTrainedTokenizerBase
    tag: str = "ки"

    def encode(self, question: str, steps: Sequence[str]) -> EncodedSolution:
        """See `SolutionForm`."""
        tag_id = single_token(self.tokenizer, self.tag)
        solution = "\n".join(f"{step} {self.tag}" for step in steps)
        return _at_tokens(self.tokenizer.encode(f"{question} {solution}"), tag_id)


@dataclass(frozen=True)
class RlhflowForm:
    """RLHFlow's: a chat whose user says the steps one by one; judged where the assistant's "+" is predicted.

    Attributes:
        tokenizer: The PRM's, with its chat template.
        plus: What the assistant answers to every step; must be one token.
    """

    tokenizer: PreTrainedTokenizerBase
    plus: str = "+"

    def encode(self, question: str, steps: Sequence[str]) -> EncodedSolution:
        """See `SolutionForm`."""
        plus_id = single_token(self.tokenizer, self.plus)
        turns: list[dict[str, str]] = []
        positions = []
        for index, step in enumerate(steps):
            turns.append({"role": "user", "content": f"{question} {step}" if index == 0 else step})
            positions.append(len(_chat(self.tokenizer, turns, generate=True)) - 1)
            turns.append({"role": "assistant", "content": self.plus})
        ids = _chat(self.tokenizer, turns, generate=False)
        if any(ids[position + 1] != plus_id for position in positions):
            raise UserError(
                f"this tokenizer's chat template does not put {self.plus!r} right after the assistant's header, so it "
                "does not belong to a PRM of RLHFlow's form"
            )
        return EncodedSolution(np.array(ids, np.int32), np.array(positions, np.int32))


@dataclass(frozen=True)
class QwenPrmForm:
    """Qwen2.5-Math-PRM's: a chat whose assistant says all steps, `<extra_0>` after each, judged there.

    Attributes:
        tokenizer: The PRM's, with its chat template.
        system: System message of the model card.
        separator: Must be one token.
    """

    tokenizer: PreTrainedTokenizerBase
    system: str = "Please reason step by step, and put your final answer within \\boxed{}."
    separator: str = "<extra_0>"

    def encode(self, question: str, steps: Sequence[str]) -> EncodedSolution:
        """See `SolutionForm`."""
        separator_id = single_token(self.tokenizer, self.separator)
        turns = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": question},
            {"role": "assistant", "content": "".join(f"{step}{self.separator}" for step in steps)},
        ]
        return _at_tokens(_chat(self.tokenizer, turns, generate=False), separator_id)


def _at_tokens(ids: Sequence[int], token_id: int) -> EncodedSolution:
    array = np.array(ids, np.int32)
    return EncodedSolution(array, np.flatnonzero(array == token_id).astype(np.int32))


def _chat(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, str]], *, generate: bool) -> list[int]:
    if not tokenizer.chat_template:
        raise UserError("this PRM's form needs a chat template, and its tokenizer has none")
    text: Any = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generate)
    return list(tokenizer.encode(text, add_special_tokens=False))
