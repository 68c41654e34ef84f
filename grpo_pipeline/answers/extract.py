"""Find the answer in a solution.

In this order: the last complete box (boxes joined by "and" or a comma form a list), <answer>, ####, "answer
is" or "Answer:", bold, and at last the last formula or number. Only what stands in the found span is ever
compared. A box that is never closed is no answer, and hides what stands before it in prose.
All scans are linear in the length of the text.
"""

import re
from dataclasses import dataclass

from grpo_pipeline.answers.verdicts import MAX_ANSWER_CHARS, MAX_TEXT_CHARS

MAX_JOINED_BOXES = 40
_TAIL = 20_000  # characters from the end that are searched for markers in prose

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
_JOIN = re.compile(
    r"(?:[\s$.,;&~]|\\[()\[\],;! ]|\\(?:quad|qquad|text|mbox|textbf|mathrm)(?![A-Za-z])|[{}]|\b(?:and|or)\b"
    r"|(?<![A-Za-z])[A-Za-z](?:_\{?\w{1,3}\}?)?\s*=)*"
)
_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
# A marker is found by its word (str.rfind, from the end) and then matched there: as one search ignoring case
# it was four fifths of the time of a check.
_MARKER_WORDS = ("answer", "solution", "result", "option", "correct choice", "答案", "\na:")
_MARKER = re.compile(
    r"(?:answers?|solutions?|results?|option|correct choice)\s*(?:\*\*|__|\})?\s*"
    r"(?:(?:is|are|equals)\b|[:=])\s*(?:\*\*|__)?\s*:?"
    r"|答案\s*(?:是|为|：|:)\s*|\na:\s*",
    re.IGNORECASE,
)
# The one claim in prose that outranks a box before it.
_FINAL = re.compile(r"\bthe\s+final\s+answer\s+is:?\s*(?=[$\d\\(-])(?!\S*\\boxed)", re.IGNORECASE)
_BARE_MARKER = re.compile(r"answer\s*(?=\$|\\\(|\\\[)", re.IGNORECASE)
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_MATH = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# A number is taken whole or not at all (atomic groups), so that "1,000.99m" is never cut to "1,000"; neither an
# exponent ("12 m^2" is 12) nor its base is a number of its own.
_UNIT = r"(?:mm|cm|m|km|kg|g|s|N|J|W|ft|L)[²³]?(?![A-Za-z])"
_NUMBER = re.compile(
    r"(?<![\w.:])\d+(?::\d+)+(?:\s*[AaPp]\.?[Mm]\b)?(?![\w:])"
    r"|(?<![\w.^√])(?<!\^[{-])(?<!\^\{-)(?<!\d,)(?:[-+−]\s?)?(?:[$€£¥]\s?)?(?:[-−])?"
    r"(?>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?(?:\s?/\s?\d+(?!\.?\d))?|\.\d+|[½¼¾⅓⅔⅕-⅞]|\\frac\{\d+\}\{\d+\})"
    r"[½¼¾⅓⅔⅕-⅞]?(?>(?:e[+-]?\d+)?)(?!\^\{?-?\d)(?:\s?\\?%|\s?percent\b)?(?:(?![A-Za-z_\d])|(?=" + _UNIT + r"))"
)
_PLAIN = re.compile(r"\s*([-+]?\d[\d,]*(?:\.\d+)?)\s*\Z")
_REASON = re.compile(r",?\s+(?:because|since|as|which|where|so|and\s+the|when|after|for)\s")
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n\s*\n|\n(?=\S)")
_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>|</s>|<eos>|\x1b\[[0-9;]*m")
_THINK_OPEN = re.compile(r"<think(?:ing)?>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Extraction:
    """The span, or None and the reason why there is none (not_found, unclosed_box, empty, over_limit)."""

    span: str | None
    reason: str


def extract(text: str) -> Extraction:
    """The answer of a solution and why it is missing if it is."""
    if len(text) > MAX_TEXT_CHARS:
        return Extraction(None, "over_limit")
    text = after_thinking(text)
    unclosed = False
    if "box" in text:
        span, unclosed = _boxed(text)
        if span is not None:
            later = _FINAL.search(text, text.rfind("\\boxed"))
            span = (later and _claim(text[later.end() :][:2_000])) or span
            return Extraction(span, "") if span.strip() else Extraction(None, "empty")
    tail = text[-_TAIL:]
    if ("<" in tail and ("<|" in tail or "</s>" in tail or "<eos>" in tail)) or "\x1b" in tail:
        tail = _SPECIAL.sub(" ", tail)
    tail = tail.rstrip()
    if not tail:
        return Extraction(None, "empty")
    if unclosed:
        return Extraction(None, "unclosed_box")
    span = _tagged(tail) or _marked(tail) or _in_bold(tail) or _last_value(tail)
    return Extraction(span, "") if span else Extraction(None, "not_found")


def extract_answer(text: str) -> str | None:
    r"""The answer span of a solution, None if there is none.

    >>> extract_answer("so it is \\boxed{\\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> extract_answer("48 + 24 = 72\n#### 72")
    '72'
    """
    return extract(text).span


def after_thinking(text: str) -> str:
    """The text behind the last think block; all of it if the block is never closed or nothing follows."""
    if "</think" not in text:
        return text
    head, _, rest = text.rpartition("</think")
    rest = rest.partition(">")[2]
    return rest if rest.strip() else _THINK_OPEN.sub("", head)


def _boxed(text: str) -> tuple[str | None, bool]:
    """The last complete box, joined with its neighbours, and whether a box was left open."""
    boxes = find_boxes(text)
    complete = [box for box in boxes if box[2]]
    if not complete:
        return None, any(not box[2] and box[3] for box in boxes)
    last = complete[-1]
    joined = [last]
    for box in reversed(complete[:-1]):
        between = text[box[1] : joined[0][0]]
        if len(between) > 200 or _JOIN.fullmatch(between) is None or len(joined) > MAX_JOINED_BOXES:
            break
        if "\n" in between and "," not in between and not re.search(r"\b(?:and|or)\b", between):
            break
        joined.insert(0, box)
    contents = [_content(text, box) for box in joined]
    if len(contents) == 1 or len(contents) > MAX_JOINED_BOXES:
        return _with_tail(text, last, contents[-1]), False
    return ", ".join(contents), False


def find_boxes(text: str) -> list[tuple[int, int, bool, bool]]:
    r"""Outermost boxes as (start, end, complete, opened) in one pass over the braces.

    "\boxed" without a brace holds the next character, as in TeX; behind it nothing but prose is no box.
    """
    boxes: list[tuple[int, int, bool, bool]] = []
    position = 0
    closing: dict[int, int] | None = None
    while True:
        match = _BOX.search(text, position)
        if match is None:
            return boxes
        if match.end() < len(text) and text[match.end()] == "{":
            if closing is None:
                closing = _match_braces(text, match.end())
            end = closing.get(match.end())
            boxes.append((match.start(), (end or match.end()) + 1, end is not None, True))
            position = (end or match.end()) + 1
        elif re.match(r"\s*\d", text[match.end() :][:4]):
            number = re.match(r"\s*\d+(?:\.\d+)?", text[match.end() :][:40])
            end = match.end() + (number.end() if number else 1)
            boxes.append((match.start(), end, True, True))
            position = end
        else:
            position = match.end()


def _match_braces(text: str, start: int) -> dict[int, int]:
    """The closing brace of every opening one; escaped braces do not count."""
    stack: list[int] = []
    pairs: dict[int, int] = {}
    for match in re.finditer(r"\\[\\{}]|[{}]", text[start:]):
        char, at = match[0], start + match.start()
        if char == "{":
            stack.append(at)
        elif char == "}" and stack:
            pairs[stack.pop()] = at
    return pairs


def _content(text: str, box: tuple[int, int, bool, bool]) -> str:
    """What stands in a box; a box in a box counts as its inner one."""
    inner = _BOX.sub("", text[box[0] : box[1]], count=1)
    inner = inner[1:-1] if inner.startswith("{") else inner
    for _ in range(20 if len(inner) <= 2 * MAX_ANSWER_CHARS else 0):
        match = _BOX.search(inner)
        if match is None or not inner[match.end() :].startswith("{"):
            break
        end = _match_braces(inner, match.end()).get(match.end())
        if end is None:
            break
        inner = inner[: match.start()] + " " + inner[match.end() + 1 : end] + " " + inner[end + 1 :]
    return inner


def _with_tail(text: str, box: tuple[int, int, bool, bool], content: str) -> str:
    """A percent sign directly behind the box belongs to it."""
    tail = re.match(r"[\s$]*(?:\\?%|pct\b|percent\b)", text[box[1] : box[1] + 20])
    return f"{content} \\%" if tail and "%" not in content else content


def _tagged(tail: str) -> str | None:
    """<answer>...</answer>, then ####."""
    if "</" in tail:
        tags = _ANSWER_TAG.findall(tail)
        if tags:
            return str(tags[-1]).strip()
    if "####" in tail:
        rest = tail[tail.rfind("####") + 4 :].strip()
        return rest.split("\n", 1)[0].strip() or None
    return None


def _marked(tail: str) -> str | None:
    """What stands behind the last "answer is", "Answer:" and their like."""
    match = _last_marker(tail)
    return None if match is None else _claim(tail[match.end() :])


def _last_marker(tail: str) -> re.Match[str] | None:
    """The last "answer is" or "Answer:"; failing that, the last "Answer" in front of a formula."""
    lower = tail.lower()
    if len(lower) != len(tail):  # a few letters change their length
        lower = tail
    found = {word: lower.rfind(word) for word in _MARKER_WORDS}
    bare: re.Match[str] | None = None
    while True:
        word = max(found, key=found.__getitem__)
        at = found[word]
        if at < 0:
            return bare
        if at == 0 or word[0] in "\n答" or not tail[at - 1].isalpha():
            match = _MARKER.match(tail, at)
            if match is not None:
                return match
            bare = bare or _BARE_MARKER.match(tail, at)
        found[word] = lower.rfind(word, 0, at)


def _claim(rest: str) -> str | None:
    """The first sentence behind a marker: its formula, or its words if they are short, or its last value."""
    plain = _PLAIN.match(rest)
    if plain is not None:
        return plain[1]
    rest = rest[: 2 * MAX_ANSWER_CHARS].lstrip(" \t\r\n:*_")
    bold = rest.find("**")
    if 0 <= bold < 300:
        rest = rest[:bold]
    # The formula may open with "\[", or stand behind an escape or a quote.
    for opening in (rest, rest.lstrip('\\"')):
        math = _MATH.match(opening)
        if math is not None:
            return _continued(opening, math)
    end = _SENTENCE_END.search(rest)
    sentence = (rest[: end.start()] if end else rest).strip().rstrip("*_ ")
    sentence = re.sub(r"\\[\])]$", "", sentence).strip()
    if not sentence:
        return None
    if _MATH.search(sentence):
        return _last_value(sentence)
    inner = re.search(r"\bis\s+(\S.*)$", sentence)
    if inner and len(sentence) > 30:
        return inner[1].strip()
    cut = _REASON.split(sentence, maxsplit=1)[0]
    return cut.strip().rstrip(",;") if len(cut) <= MAX_ANSWER_CHARS else None


def _continued(rest: str, math: re.Match[str]) -> str:
    """A formula with what directly goes on: "$12$ and $13$", "$28$ percent"."""
    parts = [_inside(math)]
    position = math.end()
    while True:
        join = re.match(r"\s*(?:,|and|or|,\s*and)\s*(?=\$|\\\()", rest[position:])
        if join is None:
            break
        following = _MATH.match(rest, position + join.end())
        if following is None:
            break
        parts.append(_inside(following))
        position = following.end()
    unit = re.match(r"\s*(?:\\?%|percent\b|pct\b)", rest[position:])
    return ", ".join(parts) + (" \\%" if unit and "%" not in parts[-1] else "")


def _inside(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


def _in_bold(tail: str) -> str | None:
    """The last bold passage if it holds a value and little else."""
    found = _BOLD.findall(tail)
    if not found:
        return None
    last = str(found[-1]).strip().strip(":")
    if _MATH.search(last):
        return _last_value(last)
    if re.fullmatch(r"\(?[A-J]\)?\.?", last):
        return last
    return last if re.search(r"\d", last) and len(last) <= 60 else None


def _last_value(tail: str) -> str | None:
    """The last formula that says something, or the last number, whichever comes later."""
    tail = tail[-2_000:]
    formula: re.Match[str] | None = None
    for match in _MATH.finditer(tail):
        if _is_telling(_inside(match)):
            formula = match
    number = _last(_NUMBER, tail)
    if formula is not None and (number is None or number.start() < formula.end()):
        return _inside(formula)
    if number is None:
        return None
    return number[0].replace("−", "-").strip()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def _is_telling(formula: str) -> bool:
    """A formula that holds a digit or a command, and not only the name of something."""
    return bool(re.search(r"\d|\\(?:frac|sqrt|pi|infty|begin|emptyset|varnothing|text)|[=<>]", formula))
