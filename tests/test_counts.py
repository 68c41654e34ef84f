"""Every count that a person may meet is said in words, and docs/exchange.md explains those of imports and exports."""

import doctest
import re
from pathlib import Path

from grpo_pipeline import counts
from grpo_pipeline.answers import checker
from grpo_pipeline.counts import EXCHANGED, WORDS, in_words, left_out, listed

PACKAGE = Path(counts.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "exchange.md").read_text(encoding="utf-8")


def test_every_reason_of_the_code_has_words():
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    written = set(re.findall(r"""(?:skipped|counts|dropped)\["(\w+)"\] \+?= """, source))
    written |= {f"dropped_{reason}" for reason in (*checker._GOLD_REASONS.values(), "gold_unreadable")}
    assert {"no_prefixes", "tag_in_text", "dropped_by_reader", "dropped_gold_code"} <= written
    assert written - WORDS.keys() == set()


def test_the_page_explains_every_count_of_imports_and_exports():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert {name: rows.get(name) for name in EXCHANGED} == EXCHANGED


def test_only_what_is_there_is_listed():
    assert listed({"read": 0}) == "nothing"
    assert left_out({"rows": 5, "no_prefixes": 2, "too_long": 0, "eval_dropped_duplicate": 1}) == {
        "not from a math-aps file, whose searched prefixes it would need": 2,
        "evaluation source, the same problem again": 1,
    }
    assert in_words("of_my_own_stage") == "of my own stage"


def test_doctests():
    assert doctest.testmod(counts) == (0, 3)
