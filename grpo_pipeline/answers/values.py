"""Comparison of single values: numbers, expressions, times, ratios, numbers in a base."""

from abc import ABC, abstractmethod
from fractions import Fraction

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import canonical, decimal_digits, free_symbols, is_scalar
from grpo_pipeline.answers.exact import exact_value
from grpo_pipeline.answers.identity import same_constants, same_functions
from grpo_pipeline.answers.rounding import percent_pairs, rounded
from grpo_pipeline.answers.verdicts import Refused


class ValueComparer(ABC):
    """The rules for single values. `heavy` allows sympy: only inside a worker process."""

    def __init__(self, *, heavy: bool = False) -> None:
        self.heavy = heavy

    @abstractmethod
    def same(self, gold: n.Node, answer: n.Node) -> bool:
        """Whether two nodes of any kind mean the same."""

    def same_scalars(self, gold: n.Node, answer: n.Node) -> bool:
        """Numbers and expressions; percent signs are tried both ways."""
        pairs = list(percent_pairs(gold, answer))
        return any(self.same_values(a, b) for a, b in pairs)

    def same_values(self, gold: n.Node, answer: n.Node) -> bool:
        """By spelling, exactly, then by value."""
        spelled = canonical(gold) == canonical(answer)
        if not free_symbols(gold) and not free_symbols(answer):
            left, right = exact_value(gold), exact_value(answer)
            if left is not None and right is not None:
                return left == right or rounded(left, right, decimal_digits(gold), decimal_digits(answer))
            return spelled or same_constants(gold, answer, heavy=self.heavy)
        return spelled or same_functions(gold, answer, heavy=self.heavy)

    def same_notations(self, gold: n.Node, answer: n.Node) -> bool:  # noqa: PLR0911 - one case a kind
        """Times, ratios and numbers in a base."""
        match gold, answer:
            case n.Time(seconds=a), n.Time(seconds=b):
                return a == b
            case n.Based(), n.Based():
                return gold == answer
            case n.Based(digits=digits), n.Number(value=value):
                # The subscript may be left out of an answer.
                return value.denominator == 1 and digits.lstrip("-").isdecimal() and int(digits) == value
            case n.Ratio(parts=a), n.Ratio(parts=b):
                return len(a) == len(b) and (self.all_same(a, b) or self.same_proportions(a, b))
            case (n.Time(shown=shown), n.Ratio(parts=parts)) | (n.Ratio(parts=parts), n.Time(shown=shown)):
                return self.all_same(parts, tuple(n.Number(Fraction(k)) for k in shown))
            case n.Ratio(parts=(top, bottom)), _ if is_scalar(answer):
                return self.same_scalars(n.Div(top, bottom), answer)
            case _, n.Ratio(parts=(top, bottom)) if is_scalar(gold):
                return self.same_scalars(gold, n.Div(top, bottom))
        return False

    def same_proportions(self, left: tuple[n.Node, ...], right: tuple[n.Node, ...]) -> bool:
        """4:6 and 2:3 are the same ratio."""
        if not all(is_scalar(part) for part in (*left, *right)):
            return False
        return all(
            self.same_scalars(n.Mul((left[0], right[k])), n.Mul((right[0], left[k]))) for k in range(1, len(left))
        )

    def all_same(self, left: tuple[n.Node, ...], right: tuple[n.Node, ...]) -> bool:
        """Item by item. A clear difference decides before an undecided pair is complained about."""
        if len(left) != len(right):
            return False
        undecided: Refused | None = None
        for a, b in zip(left, right, strict=True):
            try:
                if not self.same(a, b):
                    return False
            except Refused as refused:
                undecided = undecided or refused
        if undecided is not None:
            raise undecided
        return True
