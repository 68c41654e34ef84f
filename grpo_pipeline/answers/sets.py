"""Sets of real numbers: intervals, inequalities, unions, and their comparison.

A set is a sorted tuple of disjoint pieces. End points are 60-digit numbers; equality of end points is
agreement to 40 digits.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import canonical, free_symbols, is_scalar, walk
from grpo_pipeline.answers.identity import close, constant_value
from grpo_pipeline.answers.numeric import Evaluator, context
from grpo_pipeline.answers.verdicts import Refused

INEQUALITIES = frozenset({"<", "<=", ">", ">=", "!="})
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!=", "=": "="}
MAX_PIECES = 200


@dataclass(frozen=True, slots=True)
class Piece:
    """One interval; a point is a closed interval of length 0."""

    low: Any
    low_closed: bool
    high: Any
    high_closed: bool

    @property
    def is_empty(self) -> bool:
        """Nothing lies inside."""
        if close(self.low, self.high):
            return not (self.low_closed and self.high_closed)
        return bool(self.low > self.high)


@dataclass(frozen=True, slots=True)
class RealSet:
    """Pieces, and the name of the quantity that lies in them where the answer named one."""

    pieces: tuple[Piece, ...]
    name: str | None = None


def everything() -> Piece:
    """The real line."""
    mp = context()
    return Piece(-mp.inf, False, mp.inf, False)


def union(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Sorted and merged."""
    if len(pieces) > MAX_PIECES:
        raise Refused("over_limit", "too many intervals")
    ordered = sorted((p for p in pieces if not p.is_empty), key=lambda p: (p.low, not p.low_closed))
    merged: list[Piece] = []
    for piece in ordered:
        if merged:
            last = merged[-1]
            touching = close(piece.low, last.high) and (piece.low_closed or last.high_closed)
            if touching or (piece.low < last.high and not close(piece.low, last.high)):
                if close(piece.high, last.high):
                    merged[-1] = replace(last, high_closed=last.high_closed or piece.high_closed)
                elif piece.high > last.high:
                    merged[-1] = replace(last, high=piece.high, high_closed=piece.high_closed)
                continue
        merged.append(piece)
    return tuple(merged)


def intersection(left: tuple[Piece, ...], right: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """What lies in both."""
    found = []
    for a in left:
        for b in right:
            low, low_closed = _inner(a.low, a.low_closed, b.low, b.low_closed, upper=False)
            high, high_closed = _inner(a.high, a.high_closed, b.high, b.high_closed, upper=True)
            found.append(Piece(low, low_closed, high, high_closed))
    return union(found)


def _inner(a: Any, a_closed: bool, b: Any, b_closed: bool, *, upper: bool) -> tuple[Any, bool]:
    if close(a, b):
        return a, a_closed and b_closed
    return (a, a_closed) if (a < b) == upper else (b, b_closed)


def complement(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The real line without the pieces."""
    rest: tuple[Piece, ...] = (everything(),)
    for piece in pieces:
        line = everything()
        outside = (
            Piece(line.low, False, piece.low, not piece.low_closed),
            Piece(piece.high, not piece.high_closed, line.high, False),
        )
        rest = intersection(rest, union([p for p in outside if not p.is_empty]))
    return rest


def same_sets(left: RealSet, right: RealSet) -> bool:
    """Equal as sets; two different names make a difference, a missing name does not."""
    if left.name and right.name and left.name != right.name:
        return False
    return len(left.pieces) == len(right.pieces) and all(
        close(a.low, b.low)
        and close(a.high, b.high)
        and a.low_closed == b.low_closed
        and a.high_closed == b.high_closed
        for a, b in zip(left.pieces, right.pieces, strict=True)
    )


def to_set(node: n.Node, *, heavy: bool) -> RealSet | None:  # noqa: C901, PLR0911 - one case a kind
    """The set of reals that a node describes, None if it describes none."""
    match node:
        case n.NamedSet(name="R"):
            return RealSet((everything(),))
        case n.NamedSet(name="empty"):
            return RealSet(())
        case n.Sequence(left="{", items=items):
            points = [_constant(item, heavy=heavy) for item in items]
            return None if None in points else RealSet(union([Piece(p, True, p, True) for p in points]))
        case n.Sequence(left="(" | "[", right=right, items=(low, high)):
            a, b = _constant(low, heavy=heavy), _constant(high, heavy=heavy)
            if a is None or b is None:
                return None
            piece = Piece(a, node.left == "[", b, right == "]")
            return None if piece.is_empty else RealSet((piece,))
        case n.SetOp(op=op, left=left, right=right):
            first, second = to_set(left, heavy=heavy), to_set(right, heavy=heavy)
            if first is None or second is None:
                return None
            if op == "|":
                return RealSet(union([*first.pieces, *second.pieces]))
            other = second.pieces if op == "&" else complement(second.pieces)
            return RealSet(intersection(first.pieces, other))
        case n.Relation():
            return solve(node, heavy=heavy)
        case n.Listing(items=items, join=join):
            return _combine(items, join, heavy=heavy)
    return None


def _combine(items: tuple[n.Node, ...], join: str, *, heavy: bool) -> RealSet | None:
    sets = [to_set(item, heavy=heavy) for item in items]
    known = [one for one in sets if one is not None]
    names = {one.name for one in known if one.name}
    if len(known) != len(sets) or len(names) > 1:
        return None
    name = names.pop() if names else None
    merged = union([piece for one in known for piece in one.pieces])
    if join == "or":
        return RealSet(merged, name)
    common: tuple[Piece, ...] = (everything(),)
    for one in known:
        common = intersection(common, one.pieces)
    # "x < 2 and x > 5" is often written for the union; as an intersection it would hold nothing.
    return RealSet(common or merged, name)


def _constant(node: n.Node, *, heavy: bool) -> Any | None:
    if (
        not is_scalar(node)
        or free_symbols(node)
        or any(
            isinstance(part, n.Call) and (part.name in ("pm", "mp") or part.name.startswith("opaque"))
            for part in walk(node)
        )
    ):
        return None
    value = constant_value(node, heavy=heavy)
    return context().re(value) if context().im(value) == 0 else None


def solve(relation: n.Relation, *, heavy: bool) -> RealSet | None:
    """The interval of an inequality in one quantity: a bare name, or linear in one variable."""
    operands, ops = relation.operands, relation.ops
    if ops == ("in",):
        inner = to_set(operands[1], heavy=heavy)
        return None if inner is None else RealSet(inner.pieces, canonical(operands[0]))
    if not set(ops) <= INEQUALITIES | {"="} or len(ops) > 2 or ("=" in ops and len(ops) > 1):
        return None
    pieces: tuple[Piece, ...] = (everything(),)
    names = set()
    for left, op, right in zip(operands, ops, operands[1:], strict=False):
        solved = _solve_pair(left, op, right, heavy=heavy)
        if solved is None:
            return None
        pieces = intersection(pieces, solved.pieces)
        names.add(solved.name)
    return RealSet(pieces, names.pop()) if len(names) == 1 else None


def _solve_pair(left: n.Node, op: str, right: n.Node, *, heavy: bool) -> RealSet | None:
    for name_side, bound_side, direction in ((left, right, op), (right, left, _FLIPPED[op])):
        bound = _constant(bound_side, heavy=heavy)
        if bound is not None and _is_quantity(name_side):
            return RealSet(_ray(direction, bound), canonical(name_side))
        if bound is not None and isinstance(name_side, n.Call) and name_side.name == "abs":
            return _absolute(name_side.args[0], direction, bound_side, heavy=heavy)
    variables = free_symbols(left) | free_symbols(right)
    if len(variables) != 1 or not is_scalar(left) or not is_scalar(right):
        return None
    variable = variables.pop()
    mp = context()
    values = []
    for x in (0, 1, 2, 5):
        evaluator = Evaluator({variable: mp.mpf(x)}, heavy=heavy)
        try:
            values.append(evaluator.value(left) - evaluator.value(right))
        except Refused:
            return None
    slope = values[1] - values[0]
    linear = all(
        abs(values[0] + x * slope - values[k]) < mp.ldexp(1, -120) for k, x in ((2, 2), (3, 5)) if mp.im(values[k]) == 0
    )
    if slope == 0 or not linear or any(mp.im(v) != 0 for v in values):
        return None
    return RealSet(_ray(op if slope > 0 else _FLIPPED[op], -values[0] / slope), canonical(n.Symbol(variable)))


def _absolute(inner: n.Node, op: str, bound: n.Node, *, heavy: bool) -> RealSet | None:
    """|u| < c is -c < u < c; |u| > c is u < -c or u > c."""
    if op not in ("<", "<=", ">", ">="):
        return None
    minus = n.Mul((n.Number(Fraction(-1)), bound))
    above = _solve_pair(inner, op, bound, heavy=heavy)
    below = _solve_pair(inner, _FLIPPED[op], minus, heavy=heavy)
    if above is None or below is None:
        return None
    both = intersection(above.pieces, below.pieces) if op[0] == "<" else union([*above.pieces, *below.pieces])
    return RealSet(both, above.name)


def _is_quantity(node: n.Node) -> bool:
    """A variable, a function value or an absolute value that is not constant."""
    return isinstance(node, n.Symbol) or (
        isinstance(node, n.Call) and (node.name.startswith("opaque:") or node.name == "apply")
    )


def _ray(op: str, bound: Any) -> tuple[Piece, ...]:
    mp = context()
    if op in ("<", "<="):
        return (Piece(-mp.inf, False, bound, op == "<="),)
    if op in (">", ">="):
        return (Piece(bound, op == ">=", mp.inf, False),)
    point = Piece(bound, True, bound, True)
    return (point,) if op == "=" else complement((point,))
