"""Values to 60 digits, and equality of two expressions by their values.

Two expressions are told apart by one point where they differ. They are called equal when they agree to 40
digits at every point tried, at least four, over positive, negative, small and large values: for the
elementary functions of this grammar that is an identity test in the manner of Schwartz (1980), and no
rounding to few decimals is involved. Points where a value does not exist or is not real are passed over.

mpmath keeps its precision in a context object; each thread has its own here, so that checks are thread-safe.
"""

import hashlib
import random
import threading
from collections.abc import Mapping
from typing import Any

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import canonical, decimal_digits, free_symbols, walk
from grpo_pipeline.answers.exact import exact_value
from grpo_pipeline.answers.verdicts import MAX_NUMERIC_EXPONENT_BITS, NeedsWorker, Refused

PRECISION_BITS = 200
POINTS = 12
ENOUGH_POINTS = 4
STEPS_IN_PROCESS = 20_000
STEPS_IN_WORKER = 2_000_000
MAX_NUMERIC_TERMS = 20_000
Real = Any  # an mpf or mpc of the thread's own context; mpmath has no types
_local = threading.local()


def context() -> Any:
    """This thread's mpmath context."""
    if not hasattr(_local, "context"):
        import mpmath

        _local.context = mpmath.MPContext()
        _local.context.prec = PRECISION_BITS
    return _local.context


class Evaluator:
    """Evaluates nodes at one point. `heavy` allows sympy and many steps: only inside a worker process."""

    def __init__(self, point: Mapping[str, Real], *, heavy: bool) -> None:
        self.point = dict(point)
        self.heavy = heavy
        self.steps = STEPS_IN_WORKER if heavy else STEPS_IN_PROCESS
        self.in_angle = False
        self.mp = context()

    def value(self, node: n.Node) -> Real:
        """The value; raises Refused (undefined, over_limit, unreadable) or NeedsWorker."""
        self.steps -= 1
        if self.steps < 0:
            raise Refused("undecided", "too many steps") if self.heavy else NeedsWorker
        mp = self.mp
        match node:
            case n.Number(value=value):
                return mp.mpf(value.numerator) / value.denominator
            case n.Symbol(name=name):
                if name not in self.point:
                    raise Refused("undecided", f"no value for {name}")
                return self.point[name]
            case n.Constant(name=name):
                return {"pi": mp.pi, "e": mp.e, "i": mp.j, "inf": mp.inf}[name] * 1
            case n.Add(terms=terms):
                return mp.fsum(map(self.value, terms))
            case n.Mul(factors=factors):
                result = mp.mpf(1)
                for factor in factors:
                    result = result * self.value(factor)
                return result
            case n.Div(top=top, bottom=bottom):
                above, below = self.value(top), self.value(bottom)
                if below == 0:
                    raise Refused("undefined", "division by zero")
                return above / below
            case n.Pow(base=base, exponent=exponent):
                return self.power(self.value(base), self.value(exponent))
            case n.Call(name=name, args=args):
                return self.call(name, args)
            case n.BigOp():
                return self.big(node)
            case n.Ratio(parts=parts) if len(parts) == 2:
                return self.value(n.Div(*parts))
        raise Refused("undecided", f"no value for a {type(node).__name__}")

    def power(self, base: Real, exponent: Real) -> Real:
        """A power with its magnitude bounded before it is computed."""
        mp = self.mp
        if base == 0:
            if mp.re(exponent) > 0:
                return mp.mpf(0)
            if exponent == 0:
                return mp.mpf(1)
            raise Refused("undefined", "zero to a negative power")
        if mp.isinf(base) or mp.isinf(exponent):
            raise Refused("undefined", "a power of infinity")
        if abs(exponent * mp.log(abs(base))) > mp.ldexp(1, MAX_NUMERIC_EXPONENT_BITS):
            raise Refused("over_limit", "a power too large")
        return mp.power(base, exponent)

    def call(self, name: str, args: tuple[n.Node, ...]) -> Real:
        """A named function."""
        mp = self.mp
        if name == "apply":
            return self.value(n.Mul(args)) if len(args) == 2 else self.opaque(canonical(args[0]), args[1:])
        if name.startswith("opaque:"):
            return self.opaque(name, args)
        if name == "det" and args and isinstance(args[0], n.Matrix):
            return mp.det(mp.matrix([[self.value(entry) for entry in row] for row in args[0].rows]))
        angle, self.in_angle = self.in_angle, self.in_angle or name in _ANGLES
        try:
            values = [self.value(arg) for arg in args]
            if name == "deg" and len(values) == 1:
                return values[0] * mp.pi / 180 if self.in_angle else values[0]
            return self.apply(name, values)
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            raise Refused("undefined", f"{name}: {error}") from None
        finally:
            self.in_angle = angle

    def apply(self, name: str, values: list[Real]) -> Real:
        """A function of numbers, arguments capped."""
        mp = self.mp
        if any(abs(v) > mp.mpf(10) ** 15 and not mp.isinf(v) for v in values) and name in _CAPPED:
            raise Refused("over_limit", f"{name} of a huge number")
        first = values[0]
        if len(values) == 1 and name in _ONE_ARGUMENT:
            return getattr(mp, _ONE_ARGUMENT[name])(first)
        match name, len(values):
            case "root", 2:
                index = values[1]
                if mp.im(first) == 0 and mp.re(first) < 0 and index == int(index) and int(index) % 2:
                    return -self.power(-first, 1 / index)
                return self.power(first, 1 / index)
            case "log", 1:
                return mp.log(first) / self.opaque("log base", ())
            case "log10", 1:
                return mp.log(first) / mp.log(10)
            case "log", 2:
                return mp.log(first) / mp.log(values[1])
            case "percent", 1:
                return first / 100
            case "factorial", 1 if abs(first) < 10**6:
                return mp.gamma(first + 1)
            case "binom", 2 if abs(first) < 10**6 and abs(values[1]) < 10**6:
                return mp.binomial(first, values[1])
            case ("max" | "min"), _ if all(mp.im(v) == 0 for v in values):
                return max(values) if name == "max" else min(values)
            case "mod", 2 if values[1] != 0:
                return first - values[1] * mp.floor(first / values[1])
        raise Refused("undecided", f"{name} of {len(values)} arguments")

    def opaque(self, name: str, args: tuple[n.Node, ...]) -> Real:
        """An unknown function: a value that depends on the name and the argument values only."""
        shown = ",".join(self.mp.nstr(self.value(arg), 25) for arg in args)
        digest = hashlib.sha256(f"{name}({shown})".encode()).digest()
        return 1 + self.mp.mpf(int.from_bytes(digest[:24], "big")) / 2**192

    def big(self, node: n.BigOp) -> Real:
        """A sum or product of whole steps; everything else is sympy's, inside a worker."""
        mp = self.mp
        if node.kind in ("sum", "prod") and node.low is not None and node.high is not None:
            low, high = self.value(node.low), self.value(node.high)
            if mp.isint(low) and mp.isint(high) and high - low < MAX_NUMERIC_TERMS:
                kept = self.point.get(node.variable)
                total = mp.mpf(0 if node.kind == "sum" else 1)
                for k in range(int(low), int(high) + 1):
                    self.point[node.variable] = mp.mpf(k)
                    term = self.value(node.body)
                    total = total + term if node.kind == "sum" else total * term
                if kept is not None:
                    self.point[node.variable] = kept
                return total
        if not self.heavy:
            raise NeedsWorker
        from grpo_pipeline.answers.symbolic import evaluate

        return evaluate(node, self.point, mp)


_ANGLES = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
_ONE_ARGUMENT = {
    **{name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc",
                               "sinh", "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "exp", "ceil", "floor", "sign",
                               "arg")},
    "abs": "fabs", "ln": "log", "Re": "re", "Im": "im",
}  # fmt: skip
_CAPPED = frozenset({*_ONE_ARGUMENT, "factorial", "binom"}) - {"abs", "ln", "floor", "ceil", "sign", "Re", "Im"}


def points(names: set[str], count: int = POINTS) -> list[dict[str, Real]]:
    """Fixed points: the same names always get the same values, whatever process asks."""
    mp = context()
    ranges = [(0.3, 2), (1, 4), (0.1, 1), (-3, -0.3), (-2, 2), (2, 9), (-9, 9), (5, 40), (-1, 1), (0.5, 1.5)]
    chosen = []
    for k in range(count):
        low, high = ranges[k % len(ranges)]
        point = {}
        for name in names:
            draw = random.Random(f"{k} {name}").getrandbits(64)  # noqa: S311 - sample points, no secrets
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
    mp = context()
    agreed = complex_agreed = 0
    for point in points(names):
        try:
            a = Evaluator(point, heavy=heavy).value(left)
            b = Evaluator(point, heavy=heavy).value(right)
        except Refused as refused:
            if refused.reason == "undefined":
                continue
            raise
        if mp.isnan(a) or mp.isnan(b):
            continue
        real = mp.im(a) == 0 and mp.im(b) == 0
        if close(a, b, 110):
            agreed += real or imaginary
            complex_agreed += 1
        elif real or imaginary:
            return False
    if agreed >= ENOUGH_POINTS or (agreed == 0 and complex_agreed >= ENOUGH_POINTS):
        return True
    raise Refused("undecided", "too few points where both are defined")


def proportional(left: n.Node, right: n.Node, *, heavy: bool, positive: bool = False) -> bool:
    """Whether left = c * right with one constant c other than 0 (c > 0 if `positive`)."""
    names = free_symbols(left) | free_symbols(right)
    mp = context()
    ratio = None
    agreed = 0
    for point in points(names):
        try:
            a = Evaluator(point, heavy=heavy).value(left)
            b = Evaluator(point, heavy=heavy).value(right)
        except Refused as refused:
            if refused.reason == "undefined":
                continue
            raise
        tiny = mp.ldexp(1, -150)
        if mp.im(a) != 0 or mp.im(b) != 0 or (abs(a) < tiny and abs(b) < tiny):
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
