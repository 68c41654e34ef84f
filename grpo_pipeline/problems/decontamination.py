"""Training problems that an evaluation problem gives away, word for word or nearly.

Two rules, on texts reduced to lower-case words and numbers:

- exact: the texts are equal;
- ngram: they share a run of 13 words, and their longest common subsequence of words is more than 0.6 of the
  shorter text (the rule of Qwen2.5-Math, arXiv 2409.12122). The second half keeps stock phrases ("what is
  the smallest positive integer such that ...") from counting as a match.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence

import polars as pl

NGRAM = 13
COMMON_SHARE = 0.6

_WORD = re.compile(r"\d+(?:[.,]\d+)*|\w+|[^\w\s]")
_PUNCTUATION = frozenset(".,;:!?\"'`()[]{}$")

MATCH_SCHEMA = {
    "problem_id": pl.String,
    "eval_problem_id": pl.String,
    "match": pl.String,
    "share": pl.Float64,
}


def words(text: str) -> list[str]:
    """Lower-case words, numbers (without commas between thousands) and operators, without punctuation."""
    text = unicodedata.normalize("NFKC", text).lower()
    tokens = (token.replace(",", "") if token[0].isdigit() else token for token in _WORD.findall(text))
    return [token for token in tokens if token not in _PUNCTUATION]


def find_contamination(train: pl.DataFrame, evaluation: pl.DataFrame) -> pl.DataFrame:
    """Training problems that match an evaluation problem.

    Args:
        train: Problems with problem_id and question.
        evaluation: The same, held out.

    Returns:
        A row for each training problem that matches: problem_id, eval_problem_id (the closest), match
        (exact or ngram), share (of the shorter text's words that are common, in order; 1 for exact).
    """
    exact: dict[tuple[str, ...], str] = {}
    runs: dict[tuple[str, ...], set[str]] = defaultdict(set)
    held_out: dict[str, list[str]] = {}
    for identifier, question in evaluation.select("problem_id", "question").iter_rows():
        held_out[identifier] = text = words(question)
        exact.setdefault(tuple(text), identifier)
        for run in _runs(text):
            runs[run].add(identifier)
    found = []
    for identifier, question in train.select("problem_id", "question").iter_rows():
        text = words(question)
        if (twin := exact.get(tuple(text))) is not None:
            found.append((identifier, twin, "exact", 1.0))
            continue
        suspects = sorted({suspect for run in _runs(text) for suspect in runs.get(run, ())})
        shares = [(common_share(text, held_out[suspect]), suspect) for suspect in suspects]
        share, closest = max(shares, default=(0.0, ""))
        if share > COMMON_SHARE:
            found.append((identifier, closest, "ngram", share))
    return pl.DataFrame(found, schema=MATCH_SCHEMA, orient="row")


def common_share(one: Sequence[str], other: Sequence[str]) -> float:
    """Length of the longest common subsequence as a share of the shorter text, in [0, 1].

    A row of the dynamic programme is one integer, with a 0 at each word of `other` at which the length grows
    (Crochemore et al. 2001, doi 10.1016/S0020-0190(00)00214-X): texts of thousands of words take milliseconds.
    """
    if not one or not other:
        return 0.0
    places: dict[str, int] = defaultdict(int)
    for j, word in enumerate(other):
        places[word] |= 1 << j
    mask = row = (1 << len(other)) - 1
    for word in one:
        matched = row & places.get(word, 0)
        row = ((row + matched) | (row - matched)) & mask
    return (len(other) - row.bit_count()) / min(len(one), len(other))


def _runs(text: list[str]) -> set[tuple[str, ...]]:
    return {tuple(text[i : i + NGRAM]) for i in range(len(text) - NGRAM + 1)}
