"""Polynomials in one variable with rational coefficients: long sums and integrals without sympy.

A coefficient list starts with the constant term.
"""

from fractions import Fraction
from math import comb

from grpo_pipeline.answers import nodes as n

MAX_DEGREE = 30


def polynomial(node: n.Node, variable: str) -> list[Fraction] | None:  # noqa: PLR0911 - one case a kind
    """Coefficients of a node as a polynomial in `variable`, None if it is none of low degree."""
    match node:
        case n.Number(value=value):
            return [value]
        case n.Symbol(name=name):
            return [Fraction(0), Fraction(1)] if name == variable else None
        case n.Add(terms=terms):
            total = [Fraction(0)]
            for term in terms:
                part = polynomial(term, variable)
                if part is None:
                    return None
                size = max(len(total), len(part))
                total = [_at(total, k) + _at(part, k) for k in range(size)]
            return total
        case n.Mul(factors=factors):
            return _product([polynomial(factor, variable) for factor in factors])
        case n.Div(top=top, bottom=n.Number(value=value)) if value != 0:
            part = polynomial(top, variable)
            return None if part is None else [c / value for c in part]
        case n.Pow(base=base, exponent=n.Number(value=value)) if value.denominator == 1 and 0 <= value <= MAX_DEGREE:
            return _product([polynomial(base, variable)] * value.numerator)
    return None


def _at(coefficients: list[Fraction], k: int) -> Fraction:
    return coefficients[k] if k < len(coefficients) else Fraction(0)


def _product(parts: list[list[Fraction] | None]) -> list[Fraction] | None:
    total = [Fraction(1)]
    for part in parts:
        if part is None or len(total) + len(part) - 2 > MAX_DEGREE:
            return None
        product = [Fraction(0)] * (len(total) + len(part) - 1)
        for i, a in enumerate(total):
            for j, b in enumerate(part):
                product[i + j] += a * b
        total = product
    return total


def sum_of_powers(coefficients: list[Fraction], upto: int) -> Fraction:
    """The polynomial summed over k = 0 .. upto, for any whole upto, by Bernoulli's formula (1713).

    >>> sum_of_powers([Fraction(0), Fraction(1)], 100)
    Fraction(5050, 1)
    """
    size = len(coefficients)
    bernoulli = [Fraction(1)]
    for m in range(1, size):
        bernoulli.append(-sum((comb(m + 1, k) * bernoulli[k] for k in range(m)), start=Fraction(0)) / (m + 1))
    end = Fraction(upto + 1)
    return sum(
        (
            c
            * sum((comb(p + 1, k) * bernoulli[k] * end ** (p + 1 - k) for k in range(p + 1)), start=Fraction(0))
            / (p + 1)
            for p, c in enumerate(coefficients)
        ),
        start=Fraction(0),
    )
