"""The single place that turns a question into prompt token ids.

Training, rollouts, scoring and evaluation all ask a `PromptBuilder`, so that the same question has the same
tokens everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_pipeline.config import PromptConfig
from grpo_pipeline.errors import UserError

DEFAULT_TEMPLATE = str(PromptConfig.model_fields["template"].default)
"""What the embedded model was trained on: a question and a line break."""


class PromptBuilder:
    """Encodes questions with one tokenizer, one template and one set of worked examples.

    Args:
        tokenizer: A transformers tokenizer; with ``config.chat`` it must have a chat template.
        config: Template, number of worked examples, chat.
        examples: Rows of the problems table (``question``, ``gold_solution``) that examples are taken from,
            in order; rows without a solution are passed over. A question is never shown its own solution:
            give one more than ``config.examples``, or such a question has one example less.

    Raises:
        UserError: Fewer usable examples than ``config.examples``, or chat without a chat template.
    """

    def __init__(self, tokenizer: Any, config: PromptConfig, examples: Iterable[Mapping[str, Any]] = ()) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._examples: list[tuple[str, str]] = []
        if config.examples:
            usable = ((row["question"], row["gold_solution"]) for row in examples)
            self._examples = [(question, solution.strip()) for question, solution in usable if solution]
            if len(self._examples) < config.examples:
                raise UserError(
                    f"prompt.examples = {config.examples}, but only {len(self._examples)} training problems have a "
                    "worked solution (gold_solution); lower prompt.examples or bring solutions"
                )
        if config.chat and not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "prompt.chat is on, but the model's tokenizer has no chat template; set prompt.chat = false"
            )

    def encode(self, question: str) -> list[int]:
        """Token ids of the prompt for a question.

        Without chat: the worked examples, each as template(question) + solution + an empty line, then
        template(question), encoded with the special tokens that the tokenizer itself adds (a BOS, say). With
        chat: each example is a turn of the user and one of the assistant, and the chat template alone
        decides on special tokens.
        """
        if not self._config.chat:
            text = build_prompt(question, self._config.template, self._shots(question))
            return [int(token) for token in self._tokenizer.encode(text)]
        text = self._tokenizer.apply_chat_template(self._messages(question), tokenize=False, add_generation_prompt=True)
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]

    def _shots(self, question: str) -> Sequence[tuple[str, str]]:
        others = [example for example in self._examples if example[0] != question]
        return others[: self._config.examples]

    def _messages(self, question: str) -> list[dict[str, str]]:
        messages = []
        if self._config.system is not None:
            messages.append({"role": "system", "content": self._config.system})
        for asked, solution in self._shots(question):
            messages.append({"role": "user", "content": build_prompt(asked, self._config.template).strip()})
            messages.append({"role": "assistant", "content": solution})
        messages.append({"role": "user", "content": build_prompt(question, self._config.template).strip()})
        return messages


def build_prompt(question: str, template: str = DEFAULT_TEMPLATE, examples: Sequence[tuple[str, str]] = ()) -> str:
    r"""The prompt for a question: solved examples, if any, then the question.

    Each example is the template filled with its question, its solution, and an empty line. Braces inside
    questions are left alone; only the template's own ``{question}`` is filled.

    Args:
        question: The problem's question.
        template: Text with ``{question}`` exactly once. The embedded model was trained on the default, a
            question and a line break.
        examples: Pairs of question and solution for few-shot prompts, shown in the order given.

    Returns:
        The prompt text.

    Raises:
        ValueError: The template does not hold ``{question}`` exactly once.
    """
    if template.count("{question}") != 1:
        raise ValueError(f"a prompt template must hold {{question}} exactly once, not: {template!r}")
    shots = [f"{template.replace('{question}', asked)}{solution}\n\n" for asked, solution in examples]
    return "".join(shots) + template.replace("{question}", question)
