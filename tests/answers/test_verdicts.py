"""Which verdict and which reason: what is not decided is never called wrong."""

import pytest

from grpo_pipeline.answers import REASONS, check, check_gold, count_reasons, extract_answer
from grpo_pipeline.answers.verdicts import Check


@pytest.mark.parametrize(
    ("gold", "text", "mode", "verdict", "reason"),
    [
        ("5", "5", "answer", "correct", "equal"),
        ("\\text{odd}", "Odd", "answer", "correct", "identical"),
        ("5", "6", "answer", "wrong", "different"),
        ("\\text{odd}", "even", "answer", "wrong", "text_differs"),
        ("5", "", "answer", "no_answer", "empty"),
        ("5", "no idea", "solution", "no_answer", "not_found"),
        ("5", "\\boxed{5", "solution", "no_answer", "unclosed_box"),
        ("5", "\\frac{5}{", "answer", "no_answer", "unreadable"),
        ("5", "9" * 5000, "answer", "no_answer", "over_limit"),
        ("5", "(" * 500 + "5" + ")" * 500, "answer", "no_answer", "over_limit"),
        ("5", "__import__('os').system('ls')", "answer", "no_answer", "code"),
        ("5", "\\frac{0}{0}", "answer", "no_answer", "undefined"),
        ("10^{10^{10^{10}}}", "10^{10^{10^{11}}}", "answer", "timeout", "undecided"),
        ("", "5", "answer", "bad_gold", "gold_empty"),
        ("{", "5", "answer", "bad_gold", "gold_unreadable"),
        ("import os", "5", "answer", "bad_gold", "gold_code"),
    ],
)
def test_verdict_and_reason(gold, text, mode, verdict, reason):
    found = check(gold, text, mode)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.reason in REASONS


def test_a_bad_gold_is_never_a_free_point():
    assert check("", "", "answer").verdict == "bad_gold"
    assert check("{", "{", "answer").verdict == "bad_gold"


def test_identical_strings_are_right_even_where_they_have_no_value():
    assert check("9^{9^{9^{9}}}", "9^{9^{9^{9}}}", "answer").verdict == "correct"


def test_check_gold_names_its_reason():
    assert check_gold("\\frac{1}{2}") is None
    assert check_gold("\\text{Monday}") is None
    assert check_gold("   ") == "gold_empty"


def test_an_unknown_mode_is_an_error():
    with pytest.raises(ValueError, match="mode must be one of"):
        check("5", "5", "boxed")


def test_the_extracted_span_is_returned():
    assert check("5", "so \\boxed{ 6 }.").answer == " 6 "
    assert extract_answer("nothing") is None
    assert extract_answer("#### 1,234") == "1,234"
    assert extract_answer("\\boxed{1} and \\boxed{2}") == "1, 2"


def test_reasons_are_counted():
    checks = [
        Check("correct", "5", "equal"),
        Check("wrong", "6", "different"),
        Check("correct", "7", "equal"),
    ]
    assert count_reasons(checks) == {"correct:equal": 2, "wrong:different": 1}
