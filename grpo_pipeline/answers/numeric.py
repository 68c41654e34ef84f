"""Values of nodes to 60 digits, every magnitude bounded before it is computed.

mpmath keeps its precision in a context object; each thread has its own here, so that checks are thread-safe.
"""

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import canonical
from grpo_pipeline.answers.verdicts import MAX_NUMERIC_EXPONENT_BITS, NeedsWorker, Refused

PRECISION_BITS = 200
STEPS_IN_PROCESS = 20_000
STEPS_IN_WORKER = 2_000_000
MAX_NUMERIC_TERMS = 20_000
Real = Any  # an mpf or mpc of the thread's own context; mpmath has no types
_local = threading.local()


def context() -> Any:
    """This thread's mpmath context."""
    if not hasattr(_local, "context"):
        import mpmath  # type: ignore[import-untyped]

        _local.context = mpmath.MPContext()
        _local.context.prec = PRECISION_BITS
    return _local.context


class Evaluator:
    """Evaluates nodes at one point.

    `heavy` allows sympy and many steps: only inside a worker process. `real` refuses (undefined) where a
    real argument gives a complex value: sqrt(a) sqrt(b) and sqrt(ab) agree where both exist, a, b >= 0.
    """

    def __init__(self, point: Mapping[str, Real], *, heavy: bool, real: bool = False) -> None:
        self.point = dict(point)
        self.heavy = heavy
        self.real = real
        self.steps = STEPS_IN_WORKER if heavy else STEPS_IN_PROCESS
        self.in_angle = False
        self.mp = context()

    def value(self, node: n.Node) -> Real:  # noqa: C901, PLR0911, PLR0912 - one case a kind
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
        return self.checked(mp.power(base, exponent))

    def checked(self, value: Real) -> Real:
        """The value, refused if it left the real line where it may not."""
        if self.real and self.mp.im(value) != 0:
            raise Refused("undefined", "not real")
        return value

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
            return self.checked(self.apply(name, values))
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            raise Refused("undefined", f"{name}: {error}") from None
        finally:
            self.in_angle = angle

    def apply(self, name: str, values: list[Real]) -> Real:  # noqa: C901, PLR0911 - one case a kind
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
            case (("max" | "min"), _) if all(mp.im(v) == 0 for v in values):
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
_SAME_NAME = """sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth asinh acosh atanh
    exp ceil floor sign arg"""
_ONE_ARGUMENT = {name: name for name in _SAME_NAME.split()} | {
    "abs": "fabs",
    "ln": "log",
    "Re": "re",
    "Im": "im",
}
_CAPPED = frozenset({*_ONE_ARGUMENT, "factorial", "binom"}) - {
    "abs",
    "ln",
    "floor",
    "ceil",
    "sign",
    "Re",
    "Im",
}
