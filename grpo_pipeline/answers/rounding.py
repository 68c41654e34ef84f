"""Where two spellings of one number differ by design: percent signs and long decimals."""

from fractions import Fraction

from grpo_pipeline.answers import nodes as n


def percent_pairs(gold: n.Node, answer: n.Node) -> list[tuple[n.Node, n.Node]]:
    """The pairs of values that percent signs allow: 33% is 33, 33% and 0.33; a gold 0.335 is 33.5%."""
    gold_part, answer_part = _percent(gold), _percent(answer)
    if gold_part is not None and answer_part is not None:
        return [(gold_part, answer_part)]
    if gold_part is not None:
        return [(gold, answer), (gold_part, answer)]
    if answer_part is not None:
        return [(gold, answer), (gold, answer_part)]
    return [(gold, answer)]


def _percent(node: n.Node) -> n.Node | None:
    """What stands before a percent sign, a minus in front included."""
    if isinstance(node, n.Call) and node.name == "percent":
        return node.args[0]
    if isinstance(node, n.Mul) and isinstance(node.factors[-1], n.Call) and node.factors[-1].name == "percent":
        return n.Mul((*node.factors[:-1], node.factors[-1].args[0]))
    if isinstance(node, n.Add) and isinstance(node.terms[-1], n.Call) and node.terms[-1].name == "percent":
        return n.Add((*node.terms[:-1], node.terms[-1].args[0]))
    return None


def rounded(left: Fraction, right: Fraction, left_digits: int, right_digits: int) -> bool:
    """Whether one is a decimal of at least seven digits that rounds (or cuts off) the other.

    Two decimals may also differ in length: the shorter, of six digits or more, must round the longer.
    Whole numbers and short decimals are exact and never rounded to.
    """
    digits = min(d for d in (left_digits, right_digits) if d) if left_digits or right_digits else 0
    both = bool(left_digits and right_digits)
    noise = abs(left - right) <= max(abs(left), abs(right)) / 10**14
    if noise and max(left_digits, right_digits) >= 15 and left.denominator * right.denominator != 1:
        return True  # the noise of floating point: 0.30000000000000004
    if digits < (6 if both else 7) or (left.denominator == 1 and right.denominator == 1):
        return False
    size = max(abs(left), abs(right))
    if size == 0 or (left < 0) != (right < 0):
        return False
    magnitude = Fraction(10) ** (_exponent(size) - min(digits, 12) + 1)
    exact_side = right if left_digits else left
    if not both and exact_side.denominator == 1:
        return abs(left - right) <= size / 10**12
    return abs(left - right) <= (magnitude / 2 if both else magnitude)


def _exponent(value: Fraction) -> int:
    """The decimal exponent of the leading digit."""
    guess = (value.numerator.bit_length() - value.denominator.bit_length()) * 3 // 10
    while Fraction(10) ** guess > value:
        guess -= 1
    while Fraction(10) ** (guess + 1) <= value:
        guess += 1
    return guess
