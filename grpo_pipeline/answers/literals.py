"""Literals and brackets: from what was read to a node."""

from fractions import Fraction

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.verdicts import MAX_DIGITS, Refused


def close_bracket(left: str, right: str, items: list[n.Node]) -> n.Node:
    """The node for a bracket pair with its items."""
    pair = left + right
    if pair in ("floorfloor", "ceilceil") and len(items) == 1:
        return n.Call(left, (items[0],))
    if left in ("{", "{set"):
        if right != {"{": "}", "{set": "set}"}[left]:
            raise Refused("unreadable", "brackets do not match")
        if left == "{" and len(items) == 1:
            return items[0]
        return n.Sequence("{", "}", tuple(items)) if items else n.NamedSet("empty")
    if pair not in ("()", "[]", "(]", "[)", "<>"):
        raise Refused("unreadable", "brackets do not match")
    if len(items) == 1 and (pair == "()" or isinstance(items[0], n.Matrix)):
        return items[0]
    return n.Sequence(left, right, tuple(items))


def read_number(text: str) -> n.Number:
    """A decimal or whole literal, exponent notation included, exactly."""
    if text.isdecimal():
        return n.Number(Fraction(int(text)))
    mantissa, _, exponent = text.replace("E", "e").partition("e")
    if len(exponent.lstrip("+-")) > 4 or abs(int(exponent or 0)) > MAX_DIGITS:
        raise Refused("over_limit", f"exponent {exponent[:20]}")
    value = Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0)
    digits = len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa.rstrip(".") else 0
    return n.Number(value, digits)


def repeating(text: str, period: str) -> Fraction:
    """0.1 and "6" for 0.1666..."""
    if not period.isdecimal() or len(period) > 100:
        raise Refused("unreadable", "a repeating part that is no number")
    whole, _, fixed = text.partition(".")
    head = Fraction(int(whole + fixed or 0), 10 ** len(fixed))
    return head + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
