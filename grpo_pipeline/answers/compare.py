"""Typed comparison of two nodes. Each kind has its rule; nothing is compared as text here but words."""

from fractions import Fraction
from typing import Any

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import canonical, decimal_digits, free_symbols, is_scalar
from grpo_pipeline.answers.exact import exact_value
from grpo_pipeline.answers.names import flatten, has_inequality, same_name, spread, value_of
from grpo_pipeline.answers.numeric import proportional, same_constants, same_functions
from grpo_pipeline.answers.sets import INEQUALITIES, same_sets, to_set
from grpo_pipeline.answers.verdicts import Refused

MAX_ITEMS = 200
_ORDERED = ("(", "[", "<")


class Comparer:
    """Compares a gold node with an answer node. `heavy` allows sympy: only inside a worker process."""

    def __init__(self, *, heavy: bool = False) -> None:
        self.heavy = heavy

    def same(self, gold: n.Node, answer: n.Node) -> bool:
        """Whether the answer means what the gold means.

        Raises:
            Refused: undefined, over_limit or undecided.
            NeedsWorker: where a worker process has to go on.
        """
        gold, answer = _unwrap(spread(gold)), _unwrap(spread(answer))
        if isinstance(gold, n.Listing) and isinstance(answer, n.Listing) and canonical(gold) == canonical(answer):
            return True
        if has_inequality(gold) or has_inequality(answer) or _is_set_operation(gold) or _is_set_operation(answer):
            return self.same_real_sets(gold, answer)
        if isinstance(gold, n.Relation) or isinstance(answer, n.Relation):
            return self.same_relations(gold, answer)
        if isinstance(gold, n.Words) or isinstance(answer, n.Words):
            return isinstance(gold, n.Words) and isinstance(answer, n.Words) and gold.text == answer.text
        if isinstance(gold, n.Time | n.Ratio | n.Based) or isinstance(answer, n.Time | n.Ratio | n.Based):
            return self.same_notations(gold, answer)
        if isinstance(gold, n.NamedSet) or isinstance(answer, n.NamedSet):
            return self.same_named_sets(gold, answer)
        if is_scalar(gold) and is_scalar(answer):
            return self.same_scalars(gold, answer)
        return self.same_collections(gold, answer)

    # -- relations -------------------------------------------------------------------------------------

    def same_relations(self, gold: n.Node, answer: n.Node) -> bool:
        """Equations: by the value they give, or up to a constant factor."""
        named_gold, named_answer = self.named(gold), self.named(answer)
        if isinstance(gold, n.Relation) and isinstance(answer, n.Relation):
            if canonical(gold) == canonical(answer):
                return True
            if named_gold is not None and named_answer is not None and same_name(named_gold[0], named_answer[0]):
                return self.same(named_gold[1], named_answer[1]) or self.same_equations(gold, answer)
            return self.same_equations(gold, answer)
        if named_gold is None or named_answer is None:
            return False
        return self.same(named_gold[1], named_answer[1])

    def named(self, node: n.Node) -> tuple[n.Node | None, n.Node] | None:
        """(name, value) of whatever stands there; a value that names nothing is its own value."""
        return value_of(node, heavy=self.heavy) if isinstance(node, n.Relation) else (None, node)

    def same_equations(self, gold: n.Relation, answer: n.Relation) -> bool:
        """left - right of one is a constant multiple of the other's."""
        if gold.ops != ("=",) or answer.ops != ("=",):
            return False
        if not all(is_scalar(part) for part in (*gold.operands, *answer.operands)):
            return False
        if _variables(gold) != _variables(answer):
            return False
        return proportional(_difference(gold), _difference(answer), heavy=self.heavy)

    def same_real_sets(self, gold: n.Node, answer: n.Node) -> bool:
        """Inequalities, intervals and set operations as sets of reals; else the same relations."""
        left, right = to_set(_as_set(gold), heavy=self.heavy), to_set(_as_set(answer), heavy=self.heavy)
        if left is not None and right is not None:
            return same_sets(left, right)
        if isinstance(gold, n.Relation) and isinstance(answer, n.Relation):
            return self.same_inequalities(gold, answer)
        if isinstance(gold, n.SetOp) and isinstance(answer, n.SetOp) and gold.op == answer.op:
            straight = self.same(gold.left, answer.left) and self.same(gold.right, answer.right)
            crossed = gold.op != "-" and self.same(gold.left, answer.right) and self.same(gold.right, answer.left)
            return straight or crossed
        if isinstance(gold, n.Relation) and gold.ops == ("in",):
            return self.same(gold.operands[1], answer)
        if isinstance(answer, n.Relation) and answer.ops == ("in",):
            return self.same(gold, answer.operands[1])
        if isinstance(gold, n.Listing) and isinstance(answer, n.Listing):
            return self.same_unordered(list(gold.items), list(answer.items))
        if isinstance(gold, n.Sequence) or isinstance(answer, n.Sequence):
            return self.same_open_interval(gold, answer)
        return False

    def same_open_interval(self, gold: n.Node, answer: n.Node) -> bool:
        """a < x <= b with symbolic ends beside (a, b]."""
        relation, interval = (gold, answer) if isinstance(gold, n.Relation) else (answer, gold)
        if not isinstance(relation, n.Relation) or not isinstance(interval, n.Sequence) or len(interval.items) != 2:
            return False
        relation = _ascending(relation)
        if len(relation.ops) != 2 or not set(relation.ops) <= {"<", "<="}:
            return False
        brackets = ("[" if relation.ops[0] == "<=" else "(") + ("]" if relation.ops[1] == "<=" else ")")
        ends = (relation.operands[0], relation.operands[2])
        return brackets == interval.left + interval.right and self.all_same(ends, interval.items)

    def same_inequalities(self, gold: n.Relation, answer: n.Relation) -> bool:
        """Chains read in either direction; single ones up to a positive factor."""
        first, second = _ascending(gold), _ascending(answer)
        if first.ops != second.ops:
            return False
        if len(first.operands) == len(second.operands) and self.all_same(first.operands, second.operands):
            return True
        if len(first.ops) != 1 or not all(is_scalar(p) for p in (*first.operands, *second.operands)):
            return False
        if _variables(first) != _variables(second):
            return False
        positive = first.ops != ("!=",)
        return proportional(_difference(first), _difference(second), heavy=self.heavy, positive=positive)

    # -- notations -------------------------------------------------------------------------------------

    def same_notations(self, gold: n.Node, answer: n.Node) -> bool:
        """Times, ratios and numbers in a base."""
        match gold, answer:
            case n.Time(seconds=a), n.Time(seconds=b):
                return a == b
            case n.Based(), n.Based():
                return gold == answer
            case n.Based(digits=digits), n.Number(value=value):
                # The subscript may be left out of an answer.
                return value.denominator == 1 and digits.isdecimal() and int(digits) == value
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

    def same_named_sets(self, gold: n.Node, answer: n.Node) -> bool:
        """R, the empty set and their like."""
        if gold == answer:
            return True
        if is_scalar(gold) or is_scalar(answer):
            return False
        left, right = to_set(gold, heavy=self.heavy), to_set(answer, heavy=self.heavy)
        return left is not None and right is not None and same_sets(left, right)

    # -- scalars ---------------------------------------------------------------------------------------

    def same_scalars(self, gold: n.Node, answer: n.Node) -> bool:
        """Numbers and expressions; percent signs are tried both ways."""
        pairs = list(_percent_pairs(gold, answer))
        return any(self.same_values(a, b) for a, b in pairs)

    def same_values(self, gold: n.Node, answer: n.Node) -> bool:
        """By spelling, exactly, then by value."""
        spelled = canonical(gold) == canonical(answer)
        if not free_symbols(gold) and not free_symbols(answer):
            left, right = exact_value(gold), exact_value(answer)
            if left is not None and right is not None:
                return left == right or _rounded(left, right, decimal_digits(gold), decimal_digits(answer))
            return spelled or same_constants(gold, answer, heavy=self.heavy)
        return spelled or same_functions(gold, answer, heavy=self.heavy)

    # -- collections -----------------------------------------------------------------------------------

    def same_collections(self, gold: n.Node, answer: n.Node) -> bool:
        """Lists and sets without order, tuples and matrices with it."""
        if _unordered(gold) and _unordered(answer):
            left, right = _items(gold), _items(answer)
            if isinstance(gold, n.Sequence) or isinstance(answer, n.Sequence):
                left, right = self.distinct(left), self.distinct(right)
            return self.same_unordered(left, right)
        if _unordered(gold) or _unordered(answer):
            return self.same_assignments(gold, answer)
        if isinstance(gold, n.Matrix) and isinstance(answer, n.Matrix):
            return [len(r) for r in gold.rows] == [len(r) for r in answer.rows] and all(
                self.all_same(a, b) for a, b in zip(gold.rows, answer.rows, strict=True)
            )
        if isinstance(gold, n.Matrix) or isinstance(answer, n.Matrix):
            left_items, right_items = _vector(gold), _vector(answer)
            return left_items is not None and right_items is not None and self.all_same(left_items, right_items)
        if isinstance(gold, n.Sequence) and isinstance(answer, n.Sequence):
            return _brackets(gold) == _brackets(answer) and self.all_same(gold.items, answer.items)
        return False

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

    def same_assignments(self, gold: n.Node, answer: n.Node) -> bool:
        """x = 1, y = 3 beside (1, 3)."""
        listing, ordered = (gold, answer) if _unordered(gold) else (answer, gold)
        record = self.record(listing)
        if record is None or not isinstance(ordered, n.Sequence | n.Matrix):
            return False
        vector = _vector(ordered)
        if vector is None or (isinstance(ordered, n.Sequence) and ordered.left == "["):
            return False
        return self.all_same(record, vector) if listing is gold else self.all_same(vector, record)

    def record(self, node: n.Node) -> tuple[n.Node, ...] | None:
        """The values of a list of assignments to different names, in the order of the names."""
        if not isinstance(node, n.Listing):
            return None
        pairs = [self.named(item) for item in node.items]
        if any(pair is None or pair[0] is None for pair in pairs):
            return None
        named = {canonical(pair[0]): pair[1] for pair in pairs if pair is not None and pair[0] is not None}
        if len(named) != len(node.items):
            return None
        return tuple(named[key] for key in sorted(named))

    def distinct(self, items: list[n.Node]) -> list[n.Node]:
        """Items of a set, equal ones once."""
        kept: list[n.Node] = []
        for item in items:
            if not any(self.same(item, other) for other in kept):
                kept.append(item)
        return kept

    def same_unordered(self, left: list[n.Node], right: list[n.Node]) -> bool:
        """A matching one to one."""
        if len(left) != len(right):
            return False
        if len(left) > MAX_ITEMS:
            raise Refused("over_limit", "too many items")
        left, right = self.records(left), self.records(right)
        remaining = list(right)
        undecided: Refused | None = None
        for item in left:
            for k, other in enumerate(remaining):
                try:
                    if self.same(item, other):
                        del remaining[k]
                        break
                except Refused as refused:
                    undecided = undecided or refused
            else:
                if undecided is not None:
                    raise undecided
                return False
        return True

    def records(self, items: list[n.Node]) -> list[n.Node]:
        """Groups of assignments as tuples."""
        found: list[n.Node] = []
        for item in items:
            record = self.record(item) if isinstance(item, n.Listing) else None
            found.append(item if record is None else n.Sequence("(", ")", record))
        return found


def _unwrap(node: n.Node) -> n.Node:
    """A list or set of one item is that item; a one-entry matrix is its entry."""
    while True:
        if isinstance(node, n.Listing) and len(node.items) == 1:
            node = node.items[0]
        elif isinstance(node, n.Sequence) and node.left == "{" and len(node.items) == 1:
            node = spread(node.items[0])
        else:
            return node


def _unordered(node: n.Node) -> bool:
    return isinstance(node, n.Listing) or (isinstance(node, n.Sequence) and node.left == "{")


def _items(node: n.Node) -> list[n.Node]:
    if isinstance(node, n.Listing):
        return list(node.items) if node.join == ";" else flatten(node.items)
    return flatten(node.items) if isinstance(node, n.Sequence) else [node]


def _brackets(node: n.Sequence) -> str:
    return "()" if node.left == "<" else node.left + node.right


def _vector(node: n.Node) -> tuple[n.Node, ...] | None:
    if isinstance(node, n.Sequence) and node.left in _ORDERED and node.left + node.right in ("()", "[]", "<>"):
        return node.items
    if isinstance(node, n.Matrix):
        if all(len(row) == 1 for row in node.rows):
            return tuple(row[0] for row in node.rows)
        if len(node.rows) == 1:
            return node.rows[0]
    return None


def _is_set_operation(node: n.Node) -> bool:
    if isinstance(node, n.Relation):
        return node.ops == ("in",) and _is_set_operation(node.operands[1])
    return isinstance(node, n.SetOp)


def _as_set(node: n.Node) -> n.Node:
    """A list of numbers, or one number, beside a set is the set of them."""
    if isinstance(node, n.Listing) and all(is_scalar(item) for item in node.items):
        return n.Sequence("{", "}", node.items)
    return n.Sequence("{", "}", (node,)) if is_scalar(node) else node


def _difference(relation: n.Relation) -> n.Node:
    left, right = relation.operands
    return n.Add((left, n.Mul((n.Number(Fraction(-1)), right))))


def _variables(relation: n.Relation) -> set[str]:
    return set().union(*(free_symbols(part) for part in relation.operands))


def _ascending(relation: n.Relation) -> n.Relation:
    """A chain of > read from right to left."""
    if relation.ops and set(relation.ops) <= {">", ">="}:
        flipped = tuple({">": "<", ">=": "<="}[op] for op in reversed(relation.ops))
        return n.Relation(tuple(reversed(relation.operands)), flipped)
    return relation


def _percent_pairs(gold: n.Node, answer: n.Node) -> Any:
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


def _rounded(left: Fraction, right: Fraction, left_digits: int, right_digits: int) -> bool:
    """Whether one is a decimal of at least seven digits that rounds (or cuts off) the other.

    Two decimals may also differ in length: the shorter, of six digits or more, must round the longer.
    Whole numbers and short decimals are exact and never rounded to.
    """
    digits = min(d for d in (left_digits, right_digits) if d) if left_digits or right_digits else 0
    both = bool(left_digits and right_digits)
    if max(left_digits, right_digits) >= 15 and left.denominator * right.denominator != 1:
        if abs(left - right) <= max(abs(left), abs(right)) / 10**14:
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
