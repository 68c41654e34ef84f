r"""One spelling for what is written in many: unicode, delimiters, spacing, fonts, thousands.

`tidy` gives the string that the tokeniser reads. It changes spelling only: nothing that could change a
value (a space between digits, a comma in a list) is dropped without a rule that names the case.
Text set in \text{...} stays recognisable between TEXT_OPEN and TEXT_CLOSE, because "\text{ m}" behind a
number is a unit and "m" is a variable.
"""

import re
import unicodedata

from grpo_pipeline.answers.verdicts import MAX_ANSWER_CHARS, Refused
from grpo_pipeline.answers.vocabulary import LETTER_UNITS, UNITS

TEXT_OPEN, TEXT_CLOSE, NEW_ROW = "\ue000", "\ue001", "\ue002"

_GREEK_LETTERS = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho
    varsigma sigma tau upsilon phi chi psi omega"""
_GREEK = _GREEK_LETTERS.split()
_SUPERSCRIPT = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUBSCRIPT = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ", "0123456789+-()n", strict=True))
_CHARACTERS: dict[str, str] = {
    **{chr(0x3B1 + k): f"\\{name} " for k, name in enumerate(_GREEK)},
    **{chr(0x391 + k): f"\\{name.capitalize()} " for k, name in enumerate(_GREEK) if name != "varsigma"},
    **dict.fromkeys("−–—‐‑‒―﹣－", "-"),
    "ϕ": "\\phi ", "ϵ": "\\epsilon ", "ϑ": "\\theta ", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ",
    "∙": "\\cdot ", "•": "\\cdot ", "÷": "/", "⁄": "/", "∕": "/", "∞": "\\infty ", "≤": "\\le ", "⩽": "\\le ",
    "≥": "\\ge ", "⩾": "\\ge ", "≦": "\\le ", "≧": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "≃": "\\approx ",
    "≅": "\\approx ", "±": "\\pm ", "∓": "\\mp ", "∪": "\\cup ", "∩": "\\cap ", "∖": "\\setminus ",
    "∈": "\\in ",
    "∅": "\\emptyset ", "⌀": "\\emptyset ", "º": "°", "˚": "°", "℃": "°", "℉": "°", "′": "'", "’": "'",
    "‘": "'",
    "ʹ": "'", "“": '"', "”": '"', "″": "''", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}",
    "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}", "∑": "\\sum ", "∏": "\\prod ", "∫": "\\int ", "…": "\\ldots ",
    "⋯": "\\ldots ", "⟨": "\\langle ", "⟩": "\\rangle ", "〈": "\\langle ", "〉": "\\rangle ",
    "⌊": "\\lfloor ",
    "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "，": ",", "；": ";", "、": ",", "：": ":", "∶": ":",
    "（": "(", "）": ")", "。": ".", "％": "%", "∠": "\\angle ", "→": "\\to ", "⇒": "\\Rightarrow ",
    "∨": "\\lor ",
    "∧": "\\land ", "∣": "|", "∥": "|", "￥": "¥", "＄": "$", "ℯ": "e", "ⅈ": "i", "✓": "", "ℓ": "l",
    "ħ": "\\hbar ",
}  # fmt: skip
_CHARACTER_TABLE = str.maketrans(_CHARACTERS)
_FRACTION = re.compile(r"(\d*)\s*([¼-¾⅐-⅞↉])")
_SUPER_RUN = re.compile(f"[{''.join(_SUPERSCRIPT)}]+")
_SUB_RUN = re.compile(f"[{''.join(_SUBSCRIPT)}]+")
_UNICODE_ROOT = re.compile(r"([∛∜√])\s*(\d+(?:\.\d+)?|[A-Za-z]|\(|\{|\\[A-Za-z]+)?")
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|<\|[^|<>]{1,40}\|>")

_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mbox|hbox|emph|textup|"
    r"operatorname\*?)\s*\{((?:[^{}]|\^\{[-\d]+\})*)\}"
)
_ROMAN = re.compile(r"\\(?:mathrm|rm)\s*\{((?:[^{}]|\^\{[-\d]+\})*)\}")
# "3 x 10^8": between a number and a power of ten the letter is a times sign.
_TIMES_X = re.compile(r"(?<=\d) ?x ?(?=10 ?\^)")
# One-letter units stand for variables elsewhere ("2m/h"), so that these few are named and need their space.
_UNIT_QUOTIENT = re.compile(
    r"(?<=[\d.}]) (m ?/ ?(?:s|min|h|hr)|g ?/ ?(?:mol|mL|ml|L|cm|kg)|L ?/ ?(?:s|min|h))"
    r"(?: ?\^ ?\{?(\d)\}?)?(?=[ .,;$\\]*\Z)"
)
_UNIT_WORD = r"\s*(?:\\(?:text|mathrm|rm|mbox)\s*\{\s*)?([A-Za-z]+)\s*\}?\s*(?:\^\s*\{?\d\}?)?\s*\}?\s*"
_UNIT_FRACTION = re.compile(r"(?<=[\d}])[ ,]*\\[dt]?frac\s*\{" + _UNIT_WORD + r"\}\s*\{" + _UNIT_WORD + r"\}")
_FONT = re.compile(
    r"\\(?:mathbf|mathit|mathsf|mathtt|mathcal|mathscr|mathfrak|mathnormal|boldsymbol|bm|pmb|bold|vec|hat|"
    r"underline|mathring|ensuremath|mathstrut|smash|boxed|fbox|displaystyle|textstyle)(?![A-Za-z])\s*"
)
_COLOUR = re.compile(r"\\(?:textcolor|color|colorbox)\s*\{[^{}]*\}")
# "x - 1 = 4 => x = 5" says x = 5; "k pi (k in Z)" is a list of the value and the condition.
_ARROW = re.compile(r"\\(?:Rightarrow|implies|Longrightarrow)(?![A-Za-z])")
_MEMBER = re.compile(r"\(\s*([a-z](?:\s*,\s*[a-z])*\s*\\in\s*\\mathbb\s*\{?[ZNRQ]\}?)\s*\)")
_OVER = re.compile(r"\{([^{}]*)\\(over|choose)(?![A-Za-z])([^{}]*)\}")
_SPACING = re.compile(
    r"\\(?:qquad|quad)|\\(?:left|right|middle|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|big|Big|bigg|Bigg|"
    r"limits|nolimits|displaystyle|textstyle|scriptstyle|rm|bf|it|tiny|small|normalsize|large|Large|LARGE|huge|hfill|hline|cr|nonumber|notag|enspace|"
    r"thinspace|allowbreak|protect|par|noindent|centering|,)(?![A-Za-z])|\\[,;:> ]|"
    r"\\[hv]?phantom\s*[-+=]|\\(?:hspace|vspace|[hv]?phantom|label|tag)"
    r"\*?\s*\{[^{}]*\}|(?<!\\)~"
)
_DIGIT_COMMAS = re.compile(
    r"(?<![\d.,\w(\[])(\d{1,3}(?:,\d{3})+)(?!\d|,\d)"
    r"|(?<=[(\[])(\d{1,3}(?:,\d{3})+)(?=[ \d.+*/^-]*[^\d)\],. ])"
)
_DIGIT_SPACES = re.compile(r"(?<![\d.,/^_\w] )(?<![\d.,/^_\w])\d{1,3}(?: \d{3})+(?![\d/])(?! *[\\/])")
_SPACE = re.compile(r"\s+")
_SIMPLE = re.compile(r"(?!\*)[0-9a-zA-Z+\-*/^=<>.() ]*(?<!\*)")
_CODE = re.compile(
    r"__\w+|(?<!\\)\b(?:exec|eval|compile|open|getattr|setattr|globals|locals|input|print|system|popen)\("
    r"|\bimport\s+\w|(?<!\\)\blambda\b\s*\w*\s*:|\bos\.\w|\bsys\.\w|\bsubprocess\b|\.__"
    r"|\\write\d*|\\immediate|\bdrop\s+table\b|<script|[;&|]\s*(?:rm|curl|wget|touch|cat)\s+[-/\w]"
    r"|\\(?:input|include|openout|openin|read|def|let|csname|catcode|usepackage)(?![A-Za-z])",
    re.IGNORECASE,
)


_LOOP = re.compile(r"\bfor\s+\w+\s+in\b")


def looks_like_code(text: str) -> bool:
    """Whether a string looks like Python, a shell command or TeX that writes. It is only ever refused."""
    if _CODE.search(text) is not None:
        return True
    return ("[" in text or "(" in text) and _LOOP.search(text) is not None


def tidy_unicode(text: str) -> str:
    """Give characters beyond ASCII their LaTeX or ASCII spelling; drop invisible ones."""
    if text.isascii():
        return text
    text = _FRACTION.sub(_vulgar_fraction, text)
    text = _SUPER_RUN.sub(lambda m: "^{" + "".join(_SUPERSCRIPT[c] for c in m[0]) + "}", text)
    text = _SUB_RUN.sub(lambda m: "_{" + "".join(_SUBSCRIPT[c] for c in m[0]) + "}", text)
    text = _UNICODE_ROOT.sub(_unicode_root, text)
    text = text.translate(_CHARACTER_TABLE)
    return "".join(c if c < "\x7f" else _fold_character(c) for c in text)


def _vulgar_fraction(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match[2]).partition("⁄")
    return f"{match[1]}\\frac{{{top}}}{{{bottom}}}"


def _unicode_root(match: re.Match[str]) -> str:
    index = {"∛": "[3]", "∜": "[4]", "√": ""}[match[1]]
    under = match[2] or ""
    if under in ("(", "{", ""):
        return f"\\sqrt{index}{under}"
    return f"\\sqrt{index}{{{under}}}"


def _fold_character(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.digit(char))
    if category == "Zs":
        return " "
    if category in ("Cf", "Cc", "Mn"):
        return ""
    folded = unicodedata.normalize("NFKC", char)
    return folded if folded.isascii() else char


def tidy(text: str) -> str:
    r"""The string to read: one line, no delimiters or fonts, words of \text marked.

    Raises:
        Refused: over_limit for a string of more than MAX_ANSWER_CHARS characters.
    """
    text = text.strip()
    if len(text) > MAX_ANSWER_CHARS:
        raise Refused("over_limit", f"{len(text)} characters")
    if _SIMPLE.fullmatch(text):
        text = _SPACE.sub(" ", text).rstrip(".") if "  " in text or text.endswith(".") else text
        return _spell_units(text)
    text = _TERMINAL.sub(" ", text)
    text = tidy_unicode(text)
    # Markdown and quotes around the whole; "**" inside is a power.
    text = _SPACE.sub(" ", text.replace("~", " ")).strip()
    text = _strip_wrapping(text)
    if "\\" in text or "$" in text or "{" in text:
        text = _tidy_latex(text)
    text = _spell_units(_SPACE.sub(" ", text).strip())
    return text.rstrip("\\ ").rstrip(".,;:? ") if text and text[-1] in ".,;:?\\" else text


def _spell_units(text: str) -> str:
    """Mark "m/s" behind a number as words, and read the x of "3 x 10^8" as a times sign."""
    if "/" in text:
        text = _UNIT_QUOTIENT.sub(lambda m: f" {TEXT_OPEN}{m[1].replace(' ', '')}{m[2] or ''}{TEXT_CLOSE}", text)
    return _TIMES_X.sub("*", text) if "x" in text else text


def _unit_fraction(match: re.Match[str]) -> str:
    r"""5 \frac{\text{km}}{\text{h}} as 5 \text{km/h}; a fraction of anything but units stays."""
    above, below = match[1], match[2]
    upright = "\\text" in match[0] or "\\mathrm" in match[0]
    upright = upright or above in UNITS or below in UNITS
    if upright and all(unit in UNITS or unit in LETTER_UNITS for unit in (above, below)):
        return f" \\text{{{above} per {below}}} "
    return match[0]


def _strip_wrapping(text: str) -> str:
    for mark in ("***", "**", "```", "`", '"', "''", "__", "*", "_", "'"):
        size = len(mark)
        if len(text) > 2 * size and text.startswith(mark) and text.endswith(mark) and mark not in text[size:-size]:
            text = text[size:-size].strip()
    if text.startswith("**"):
        text = text.replace("**", " ", 2)
    return text


def _tidy_latex(text: str) -> str:
    if "\\begin" in text:
        text = re.sub(r"\\\\(?:\s*\[[^\[\]]*(?:pt|em|ex|mm|cm)\])?", NEW_ROW, text)
    text = re.sub(r"(?<!\\)\\[\[\]()]", " ", text)
    text = re.sub(r"\\(?:left|right)\s*\.", " ", text)
    text = re.sub(r"(?<!\d)\.\s*(?=\\(?:overline|bar|dot)(?![A-Za-z]))", "0.", text)
    text = _ARROW.split(text)[-1]
    text = _MEMBER.sub(r", \1 ", text)
    text = text.replace("\\$", "$")
    text = re.sub(r"\$(?=\d)", " ", text).replace("$", " ")
    if "\\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z%$])", r"\\", text)
    text = text.replace("\\%", "%").replace("\\!", "\x00")
    text = re.sub(r"(?<=\d)\{,\}(?=\d)", ",", text)
    text = re.sub(r"(?<=\d),\x00\s*(?=\d)", ",", text).replace("\x00", "")
    text = _COLOUR.sub("", text).replace("{:}", ":")
    text = _OVER.sub(lambda m: f"\\{'frac' if m[2] == 'over' else 'binom'}{{{m[1]}}}{{{m[3]}}}", text)
    text = _SPACING.sub(" ", text)
    text = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", "°", text)
    text = _UNIT_FRACTION.sub(_unit_fraction, text)
    for _ in range(4):
        marked = _ROMAN.sub(_mark_roman, _TEXT.sub(_mark_text, text))
        if marked == text:
            break
        text = marked
    text = _FONT.sub("", text)
    return re.sub(r"\\(?:d|t|c)frac(?![A-Za-z])", r"\\frac", text)


def _mark_text(match: re.Match[str]) -> str:
    r"""Keep words marked; unwrap what holds no word: \text{27}, \text{(E)}, \text{C, F, H}."""
    inner = match[1]
    if not re.search(r"[A-Za-z]{2}", inner.replace("\\", " \\ ")):
        before = match.string[: match.start()].rstrip(" ~")
        if (
            re.fullmatch(r"[\s~]*[A-Za-z](?:/[A-Za-z]|\s[A-Za-z](?=\^\{-))?(?:\^\{?-?\d\}?)?[\s~]*", inner)
            and before.endswith(tuple("0123456789}"))
            and before[-2:-1] != "_"
        ):
            return _marked(inner)
        return f" {inner} "
    return _marked(inner)


def _mark_roman(match: re.Match[str]) -> str:
    r"""\mathrm sets units, but also e, i, d and subscripts."""
    if match[1].strip() in ("e", "i", "d", "E", "R", "N", "Z", "Q", "C"):
        return f" {match[1]} "
    return _mark_text(match)


def _marked(inner: str) -> str:
    inner = re.sub(r"\s*\^\s*\{?([-\d]+)\}?", r"\1", inner)  # "m/s^2" is one word
    inner = re.sub(r"[{}$\\~^_]", " ", inner)
    return f" {TEXT_OPEN}{inner}{TEXT_CLOSE} "


def join_thousands(text: str) -> str:
    """1,234 and 1 234 as 1234. A comma with fewer or more than three digits behind it stays a list."""
    if "," in text:
        text = _DIGIT_COMMAS.sub(lambda m: m[0].replace(",", ""), text)
    if " " in text:
        text = _DIGIT_SPACES.sub(lambda m: m[0].replace(" ", ""), text)
    return text


def fold_words(text: str) -> str:
    """Words for a comparison by word: lower case, no articles, quotes, punctuation or LaTeX marks."""
    text = text.replace(TEXT_OPEN, " ").replace(TEXT_CLOSE, " ")
    text = re.sub(r"[\"'`*{}]", "", text).casefold()
    text = re.sub(r"\b(?:the|a|an)\b(?!\s*[-+*/=^])", " ", text)
    return _SPACE.sub(" ", text).strip(" .,;:!?")


def compact(text: str) -> str:
    """A key for equality of spelling: spaces that separate nothing are gone, all else is kept."""
    text = text.replace(TEXT_OPEN, " ").replace(TEXT_CLOSE, " ")
    text = re.sub(r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"([_^])\s*\{\s*([A-Za-z0-9])\s*\}", r"\1\2", text)
    text = _SPACE.sub(" ", text).strip()
    return re.sub(r"(?<![A-Za-z0-9.]) | (?![A-Za-z0-9.])", "", text)
