"""How a question becomes the text a model continues."""

from collections.abc import Sequence

DEFAULT_TEMPLATE = "{question}\n"


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
