"""Integrals, limits and long sums by sympy. Imported inside worker processes only: sympy may never return."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.verdicts import Refused

_FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "exp": "exp", "ln": "log",
    "abs": "Abs", "floor": "floor", "ceil": "ceiling", "factorial": "factorial", "binom": "binomial",
    "root": "real_root",
}  # fmt: skip


def to_sympy(node: n.Node) -> Any:  # noqa: C901, PLR0911 - one case a kind
    """A sympy expression built node by node; no text is ever given to sympy."""
    import sympy

    match node:
        case n.Number(value=value):
            return sympy.Rational(value.numerator, value.denominator)
        case n.Symbol(name=name):
            return sympy.Symbol(name, real=True)
        case n.Constant(name=name):
            return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}[name]
        case n.Add(terms=terms):
            return sympy.Add(*map(to_sympy, terms))
        case n.Mul(factors=factors):
            return sympy.Mul(*map(to_sympy, factors))
        case n.Div(top=top, bottom=bottom):
            return to_sympy(top) / to_sympy(bottom)
        case n.Pow(base=base, exponent=exponent):
            return sympy.Pow(to_sympy(base), to_sympy(exponent))
        case n.Call(name="root", args=(radicand, n.Number(value=index))) if index == 2:
            return sympy.sqrt(to_sympy(radicand))
        case n.Call(name=name, args=args) if name in _FUNCTIONS:
            return getattr(sympy, _FUNCTIONS[name])(*map(to_sympy, args))
        case n.BigOp():
            return _operate(node)
    raise Refused("undecided", f"no symbolic form for a {type(node).__name__}")


def _operate(node: n.BigOp) -> Any:
    import sympy

    variable = sympy.Symbol(node.variable, real=True)
    body = to_sympy(node.body)
    if node.kind == "lim" and node.low is not None:
        return sympy.limit(body, variable, to_sympy(node.low))
    if node.low is None or node.high is None:
        raise Refused("undecided", "an integral without bounds")
    bounds = (variable, to_sympy(node.low), to_sympy(node.high))
    if node.kind == "sum":
        return sympy.summation(body, bounds)
    if node.kind == "prod":
        return sympy.product(body, bounds)
    return sympy.integrate(body, bounds)


def evaluate(node: n.BigOp, point: Mapping[str, Any], mp: Any) -> Any:
    """The value of a big operator at a point, as a number of the context `mp`."""
    import sympy

    result = to_sympy(node)
    places = {
        symbol: sympy.Float(mp.nstr(point[symbol.name], 60), 60)
        for symbol in result.free_symbols
        if symbol.name in point
    }
    value = sympy.N(result.subs(places), 60)
    if value in (sympy.oo, -sympy.oo):
        return mp.inf if value == sympy.oo else -mp.inf
    if not value.is_number or value.has(sympy.zoo, sympy.nan):
        raise Refused("undecided", "sympy found no value")
    real, imaginary = value.as_real_imag()
    parts = [mp.mpf(str(part)) for part in (real, imaginary)]
    return mp.mpc(*parts) if parts[1] else parts[0]
