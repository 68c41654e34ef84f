"""Exact rational values. Everything is capped before it is computed."""

import math
from collections.abc import Mapping
from fractions import Fraction

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.polynomial import polynomial, sum_of_powers
from grpo_pipeline.answers.verdicts import MAX_FACTORIAL, MAX_INTEGER_BITS, NeedsWorker, Refused

MAX_TERMS = 2_000  # added one by one in the calling process
MAX_RANGE = 100_000  # beyond this only sums of polynomials
Values = Mapping[str, Fraction]


def exact_value(node: n.Node, values: Values | None = None) -> Fraction | None:  # noqa: C901, PLR0911 - one case a kind
    """The value as a fraction, None where it is not rational by these rules.

    Raises:
        Refused: undefined for a division by zero; over_limit where a number would be too large.
        NeedsWorker: for a sum of too many terms.
    """
    values = values or {}
    match node:
        case n.Number(value=value):
            return value
        case n.Symbol(name=name):
            return values.get(name)
        case n.Add(terms=terms):
            return _fold(terms, values, Fraction(0), lambda a, b: a + b)
        case n.Mul(factors=factors):
            return _fold(factors, values, Fraction(1), lambda a, b: a * b)
        case n.Div(top=top, bottom=bottom):
            above, below = exact_value(top, values), exact_value(bottom, values)
            if below == 0:
                raise Refused("undefined", "division by zero")
            return None if above is None or below is None else above / below
        case n.Pow(base=base, exponent=exponent):
            root, power = exact_value(base, values), exact_value(exponent, values)
            return None if root is None or power is None else _power(root, power)
        case n.Call(name="det", args=(n.Matrix() as matrix,)):
            return _determinant(matrix, values)
        case n.Call(name=name, args=args):
            return _call(name, args, values)
        case n.BigOp(kind="sum" | "prod"):
            return _repeat(node, values)
        case n.BigOp(kind="int"):
            return _integral(node, values)
        case _:
            return None


def _fold(parts: tuple[n.Node, ...], values: Values, start: Fraction, step: object) -> Fraction | None:
    total: Fraction | None = start
    for part in parts:
        value = exact_value(part, values)
        if value is None:
            total = None
        elif total is not None:
            total = step(total, value)  # type: ignore[operator]
            _guard(total)
    return total


def _guard(value: Fraction | None) -> None:
    if value is not None and max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_INTEGER_BITS:
        raise Refused("over_limit", "a number too large")


def _power(base: Fraction, power: Fraction) -> Fraction | None:
    if power.denominator != 1:
        if power.denominator > 64 or base < 0:
            return None
        root = exact_root(base, power.denominator)
        return None if root is None else _power(root, Fraction(power.numerator))
    exponent = power.numerator
    if base == 0:
        if exponent < 0:
            raise Refused("undefined", "zero to a negative power")
        return Fraction(int(exponent == 0))
    if abs(base) == 1:
        return Fraction(1) if base > 0 or exponent % 2 == 0 else Fraction(-1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > MAX_INTEGER_BITS:
        raise Refused("over_limit", "a power too large")
    return base**exponent


def exact_root(value: Fraction, index: int) -> Fraction | None:
    """The index-th root of a rational if it is rational; odd roots of negative numbers are real."""
    if index < 1 or index > 64:
        return None
    if value < 0:
        if index % 2 == 0:
            return None
        root = exact_root(-value, index)
        return None if root is None else -root
    parts = [_integer_root(part, index) for part in (value.numerator, value.denominator)]
    if parts[0] is None or parts[1] is None:
        return None
    return Fraction(parts[0], parts[1])


def _integer_root(value: int, index: int) -> int | None:
    if index == 2:
        root = math.isqrt(value)
    else:
        if value.bit_length() > 10_000:
            return None
        low, high = 0, 1 << (value.bit_length() // index + 1)
        while low < high:
            middle = (low + high + 1) // 2
            if middle**index <= value:
                low = middle
            else:
                high = middle - 1
        root = low
    return root if root**index == value else None


def _call(name: str, args: tuple[n.Node, ...], values: Values) -> Fraction | None:  # noqa: C901, PLR0912 - one case a kind
    if name.startswith("opaque:") or name in ("pm", "mp", "apply", "det"):
        return None
    numbers = [exact_value(arg, values) for arg in args]
    if any(number is None for number in numbers) or not numbers:
        return None
    known = [number for number in numbers if number is not None]
    first = known[0]
    whole = [number.numerator for number in known if number.denominator == 1]
    all_whole = len(whole) == len(known)
    result: Fraction | None = None
    match name, len(known):
        case "percent", 1:
            result = first / 100
        case "deg", 1:
            result = first
        case "abs", 1:
            result = abs(first)
        case "floor", 1:
            result = Fraction(math.floor(first))
        case "ceil", 1:
            result = Fraction(math.ceil(first))
        case (("max" | "min"), _):
            result = max(known) if name == "max" else min(known)
        case "root", 2 if known[1].denominator == 1:
            result = exact_root(first, known[1].numerator)
        case (("gcd" | "lcm"), _) if all_whole:
            result = Fraction(math.gcd(*whole) if name == "gcd" else math.lcm(*whole))
        case "mod", 2:
            if known[1] == 0:
                raise Refused("undefined", "modulo zero")
            result = first % known[1]
        case (("factorial" | "factorial2"), 1) if all_whole and first >= 0:
            result = Fraction(_factorial(whole[0], 1 if name == "factorial" else 2))
        case "binom", 2 if all_whole and first >= 0:
            result = Fraction(_binomial(whole[0], whole[1]))
        case _:
            return None
    _guard(result)
    return result


def _factorial(number: int, step: int) -> int:
    if number > MAX_FACTORIAL:
        raise Refused("over_limit", "a factorial too large")
    return math.factorial(number) if step == 1 else math.prod(range(number, 0, -step))


def _binomial(above: int, below: int) -> int:
    if below < 0 or below > above:
        return 0
    if above > 10**6 or min(below, above - below) * above.bit_length() > 4 * MAX_FACTORIAL * 16:
        raise Refused("over_limit", "a binomial too large")
    return math.comb(above, below)


def _determinant(matrix: n.Matrix, values: Values) -> Fraction | None:
    size = len(matrix.rows)
    if any(len(row) != size for row in matrix.rows):
        raise Refused("undefined", "determinant of a matrix that is not square")
    if size > 8:
        return None
    rows: list[list[Fraction]] = []
    for row in matrix.rows:
        entries = [exact_value(entry, values) for entry in row]
        if any(entry is None for entry in entries):
            return None
        rows.append([entry for entry in entries if entry is not None])
    result = Fraction(1)
    for k in range(size):
        pivot = next((r for r in range(k, size) if rows[r][k] != 0), None)
        if pivot is None:
            return Fraction(0)
        if pivot != k:
            rows[k], rows[pivot] = rows[pivot], rows[k]
            result = -result
        result *= rows[k][k]
        for r in range(k + 1, size):
            factor = rows[r][k] / rows[k][k]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[k], strict=True)]
    return result


def _integral(node: n.BigOp, values: Values) -> Fraction | None:
    """A definite integral of a polynomial; other integrals are the worker's."""
    if node.low is None or node.high is None:
        return None
    low, high = exact_value(node.low, values), exact_value(node.high, values)
    coefficients = polynomial(node.body, node.variable)
    if low is None or high is None or coefficients is None:
        return None
    return sum(
        (c * (high ** (k + 1) - low ** (k + 1)) / (k + 1) for k, c in enumerate(coefficients)),
        start=Fraction(0),
    )


def _repeat(node: n.BigOp, values: Values) -> Fraction | None:
    if node.low is None or node.high is None:
        return None
    low, high = exact_value(node.low, values), exact_value(node.high, values)
    if low is None or high is None or low.denominator != 1 or high.denominator != 1:
        return None
    if high - low > MAX_RANGE and node.kind == "prod":
        raise Refused("over_limit", "too many factors")
    if high - low >= MAX_TERMS:
        coefficients = polynomial(node.body, node.variable) if node.kind == "sum" else None
        if coefficients is None and high - low > MAX_RANGE:
            raise Refused("over_limit", "too many terms")
        if coefficients is None:
            raise NeedsWorker
        return sum_of_powers(coefficients, high.numerator) - sum_of_powers(coefficients, low.numerator - 1)
    total = Fraction(0 if node.kind == "sum" else 1)
    for k in range(low.numerator, high.numerator + 1):
        term = exact_value(node.body, {**values, node.variable: Fraction(k)})
        if term is None:
            return None
        total = total + term if node.kind == "sum" else total * term
        _guard(total)
    return total
