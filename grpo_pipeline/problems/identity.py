"""What makes two problems the same problem: a stable id from content alone.

The id is the grouping key of every later table, so it must not depend on the file a problem was read from,
its row number, or the way its white space was wrapped.
"""

import hashlib
import json
import unicodedata

ID_DIGITS = 16


def normalise_text(text: str) -> str:
    """Text with Unicode composed (NFC) and every run of white space made one space, ends stripped."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def problem_id(question: str, gold_answer: str) -> str:
    """Id of a problem: the first 16 hex digits of the sha256 of its normalised question and gold answer.

    The pair is encoded as a JSON list, so that no question and answer can run into each other:
    ``("a b", "c")`` and ``("a", "b c")`` are two problems. 64 bits keep the chance of any collision
    among a million problems under 3e-8.

    Args:
        question: The question as it is shown to the model.
        gold_answer: The gold answer as text.

    Returns:
        16 lower-case hex digits.
    """
    content = json.dumps([normalise_text(question), normalise_text(gold_answer)], ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8")).hexdigest()[:ID_DIGITS]
