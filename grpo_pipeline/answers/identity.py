"""Equality of two expressions by their values.

Two expressions are told apart by one point where they differ. They are called equal when they agree to 33
digits or more at every point tried, at least four, over positive, negative, small and large values: for the
elementary functions of this grammar that is an identity test in the manner of Schwartz (1980), and no
rounding to few decimals is involved. Points where a value does not exist or is not real are passed over.
"""

import random
from collections.abc import Iterator
from typing import Any

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import decimal_digits, free_symbols, walk
from grpo_pipeline.answers.exact import exact_value
from grpo_pipeline.answers.numeric import PRECISION_BITS, Evaluator, context
from grpo_pipeline.answers.verdicts import Refused

POINTS = 12
ENOUGH_POINTS = 4
Real = Any  # an mpf or mpc of the thread's own context


def points(names: set[str], count: int = POINTS) -> list[dict[str, Real]]:
    """Fixed points: the same names always get the same values, whatever process asks."""
    mp = context()
    ranges = [(0.3, 2), (1, 4), (0.1, 1), (-3, -0.3), (-2, 2), (2, 9), (-9, 9), (5, 40), (-1, 1), (0.5, 1.5)]
    chosen = []
    for k in range(count):
        low, high = ranges[k % len(ranges)]
        point = {}
        for name in names:
            draw = random.Random(f"{k} {name}").getrandbits(64)
            point[name] = mp.mpf(low) + (mp.mpf(high) - mp.mpf(low)) * draw / 2**64
        chosen.append(point)
    return chosen


def close(left: Real, right: Real, bits: int = 130) -> bool:
    """Agreement to `bits` bits relative to the larger; infinities agree with themselves."""
    mp = context()
    if mp.isinf(left) or mp.isinf(right):
        return bool(left == right)
    return bool(abs(left - right) <= mp.ldexp(max(abs(left), abs(right)), -bits))


def constant_value(node: n.Node, *, heavy: bool) -> Real:
    """The value of a node without variables."""
    exact = exact_value(node)
    if exact is not None:
        return context().mpf(exact.numerator) / exact.denominator
    return Evaluator({}, heavy=heavy).value(node)


def same_constants(left: n.Node, right: n.Node, *, heavy: bool) -> bool:
    """Whether two nodes without variables have the same value."""
    mp = context()
    a, b = Evaluator({}, heavy=heavy).value(left), Evaluator({}, heavy=heavy).value(right)
    if mp.isnan(a) or mp.isnan(b):
        raise Refused("undefined", "not a number")
    if close(a, b):
        return True
    if mp.isinf(a) or mp.isinf(b) or abs(a - b) > mp.ldexp(1, -100):
        return _close_decimals(a, b, left, right)
    # Both may be tiny, or a zero that cancellation hides: look again with three times the precision.
    try:
        mp.prec = 3 * PRECISION_BITS
        a, b = Evaluator({}, heavy=heavy).value(left), Evaluator({}, heavy=heavy).value(right)
        return bool(abs(a - b) < mp.ldexp(1, -2 * PRECISION_BITS)) or close(a, b)
    finally:
        mp.prec = PRECISION_BITS


def _close_decimals(a: Real, b: Real, left: n.Node, right: n.Node) -> bool:
    """A decimal literal of seven or more significant digits may stand for a value it is rounded from."""
    digits = max(decimal_digits(left), decimal_digits(right))
    mp = context()
    if digits < 7 or mp.isinf(a) or mp.isinf(b) or max(abs(a), abs(b)) == 0:
        return False
    return bool(abs(a - b) <= mp.mpf(10) ** (1 - min(digits, 10)) * max(abs(a), abs(b)) / 2)


def same_functions(left: n.Node, right: n.Node, *, heavy: bool) -> bool:
    """Whether two expressions with variables agree wherever both are defined and real."""
    names = free_symbols(left) | free_symbols(right)
    imaginary = any(part == n.Constant("i") for node in (left, right) for part in walk(node))
    agreed = 0
    for real in (True, False)[imaginary:]:
        for a, b in _values(left, right, names, heavy=heavy, real=real):
            if not close(a, b, 110):
                return False
            agreed += 1
        if agreed:  # complex values count only for what is real nowhere
            break
    if agreed >= ENOUGH_POINTS:
        return True
    raise Refused("undecided", "too few points where both are defined")


def _values(left: n.Node, right: n.Node, names: set[str], *, heavy: bool, real: bool) -> Iterator[tuple[Real, Real]]:
    """Both values at each point where both exist."""
    mp = context()
    for point in points(names):
        try:
            a = Evaluator(point, heavy=heavy, real=real).value(left)
            b = Evaluator(point, heavy=heavy, real=real).value(right)
        except Refused as refused:
            if refused.reason == "undefined":
                continue
            raise
        if not mp.isnan(a) and not mp.isnan(b):
            yield a, b


def proportional(left: n.Node, right: n.Node, *, heavy: bool, positive: bool = False) -> bool:
    """Whether left = c * right with one constant c other than 0 (c > 0 if `positive`)."""
    names = free_symbols(left) | free_symbols(right)
    mp = context()
    ratio = None
    agreed = 0
    tiny = mp.ldexp(1, -150)
    for a, b in _values(left, right, names, heavy=heavy, real=True):
        if abs(a) < tiny and abs(b) < tiny:
            continue
        if abs(a) < tiny or abs(b) < tiny:
            return False
        ratio = a / b if ratio is None else ratio
        if not close(a / b, ratio, 110) or (positive and ratio < 0):
            return False
        agreed += 1
    if agreed < ENOUGH_POINTS:
        raise Refused("undecided", "too few points where both are defined")
    return True
