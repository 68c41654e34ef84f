"""Typed comparison of two nodes. Each kind has its rule; nothing is compared as text here but words."""

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import canonical, is_scalar
from grpo_pipeline.answers.identity import proportional
from grpo_pipeline.answers.names import has_inequality, same_name, spread, value_of
from grpo_pipeline.answers.sets import same_sets, to_set
from grpo_pipeline.answers.shapes import (
    as_set,
    as_vector,
    ascending,
    bracket_pair,
    difference,
    is_braced,
    is_set_operation,
    unordered,
    unordered_items,
    unwrap,
    variables,
)
from grpo_pipeline.answers.values import ValueComparer
from grpo_pipeline.answers.verdicts import Refused

MAX_ITEMS = 200


class Comparer(ValueComparer):
    """Compares a gold node with an answer node. `heavy` allows sympy: only inside a worker process."""

    def same(self, gold: n.Node, answer: n.Node) -> bool:  # noqa: PLR0911 - one case a kind
        """Whether the answer means what the gold means.

        Raises:
            Refused: undefined, over_limit or undecided.
            NeedsWorker: where a worker process has to go on.
        """
        gold, answer = unwrap(spread(gold)), unwrap(spread(answer))
        if isinstance(gold, n.Listing) and isinstance(answer, n.Listing) and canonical(gold) == canonical(answer):
            return True
        if has_inequality(gold) or has_inequality(answer) or is_set_operation(gold) or is_set_operation(answer):
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
        """Left - right of one is a constant multiple of the other's."""
        if gold.ops != ("=",) or answer.ops != ("=",):
            return False
        if not all(is_scalar(part) for part in (*gold.operands, *answer.operands)):
            return False
        if variables(gold) != variables(answer):
            return False
        return proportional(difference(gold), difference(answer), heavy=self.heavy)

    def same_real_sets(self, gold: n.Node, answer: n.Node) -> bool:  # noqa: PLR0911 - one case a kind
        """Inequalities, intervals and set operations as sets of reals; else the same relations."""
        left, right = to_set(as_set(gold), heavy=self.heavy), to_set(as_set(answer), heavy=self.heavy)
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
        """A < x <= b with symbolic ends beside (a, b]."""
        relation, interval = (gold, answer) if isinstance(gold, n.Relation) else (answer, gold)
        if not isinstance(relation, n.Relation) or not isinstance(interval, n.Sequence) or len(interval.items) != 2:
            return False
        relation = ascending(relation)
        if len(relation.ops) != 2 or not set(relation.ops) <= {"<", "<="}:
            return False
        brackets = ("[" if relation.ops[0] == "<=" else "(") + ("]" if relation.ops[1] == "<=" else ")")
        ends = (relation.operands[0], relation.operands[2])
        return brackets == interval.left + interval.right and self.all_same(ends, interval.items)

    def same_inequalities(self, gold: n.Relation, answer: n.Relation) -> bool:
        """Chains read in either direction; single ones up to a positive factor."""
        first, second = ascending(gold), ascending(answer)
        if first.ops != second.ops:
            return False
        if len(first.operands) == len(second.operands) and self.all_same(first.operands, second.operands):
            return True
        if len(first.ops) != 1 or not all(is_scalar(p) for p in (*first.operands, *second.operands)):
            return False
        if variables(first) != variables(second):
            return False
        positive = first.ops != ("!=",)
        return proportional(difference(first), difference(second), heavy=self.heavy, positive=positive)

    def same_named_sets(self, gold: n.Node, answer: n.Node) -> bool:
        """R, the empty set and their like."""
        if gold == answer:
            return True
        if is_scalar(gold) or is_scalar(answer):
            return False
        left, right = to_set(gold, heavy=self.heavy), to_set(answer, heavy=self.heavy)
        return left is not None and right is not None and same_sets(left, right)

    # -- collections -----------------------------------------------------------------------------------

    def same_collections(self, gold: n.Node, answer: n.Node) -> bool:
        """Lists and sets without order, tuples and matrices with it."""
        if unordered(gold) and unordered(answer):
            return self.same_lists(gold, answer)
        if unordered(gold) or unordered(answer):
            return self.same_assignments(gold, answer)
        if isinstance(gold, n.Matrix) and isinstance(answer, n.Matrix):
            return [len(r) for r in gold.rows] == [len(r) for r in answer.rows] and all(
                self.all_same(a, b) for a, b in zip(gold.rows, answer.rows, strict=True)
            )
        if isinstance(gold, n.Matrix) or isinstance(answer, n.Matrix):
            left_items, right_items = as_vector(gold), as_vector(answer)
            return left_items is not None and right_items is not None and self.all_same(left_items, right_items)
        if isinstance(gold, n.Sequence) and isinstance(answer, n.Sequence):
            return bracket_pair(gold) == bracket_pair(answer) and self.all_same(gold.items, answer.items)
        return False

    def same_lists(self, gold: n.Node, answer: n.Node) -> bool:
        """Lists and sets without order; a set counts equal items once."""
        ordered = self.ordered_records(gold, answer)
        if ordered is not None:
            return self.all_same(*ordered)
        left, right = unordered_items(gold), unordered_items(answer)
        if any(map(is_braced, left)) != any(map(is_braced, right)):
            return False  # {{1}, {2}} is not {1, 2}
        if isinstance(gold, n.Sequence) or isinstance(answer, n.Sequence):
            left, right = self.distinct(left), self.distinct(right)
        return self.same_unordered(left, right)

    def same_assignments(self, gold: n.Node, answer: n.Node) -> bool:
        """X = 1, y = 3 beside (1, 3)."""
        listing, ordered = (gold, answer) if unordered(gold) else (answer, gold)
        record = self.record(listing)
        if record is None or not isinstance(ordered, n.Sequence | n.Matrix):
            return False
        vector = as_vector(ordered)
        if vector is None or (isinstance(ordered, n.Sequence) and ordered.left == "["):
            return False
        return self.all_same(record, vector) if listing is gold else self.all_same(vector, record)

    def ordered_records(self, gold: n.Node, answer: n.Node) -> tuple[tuple[n.Node, ...], tuple[n.Node, ...]] | None:
        """AB = 4, CD = 5 beside 4, 5: names on one side only give an order, unless they are x_1, x_2."""
        for named, bare, swap in ((gold, answer, False), (answer, gold, True)):
            if not isinstance(named, n.Listing) or not isinstance(bare, n.Listing):
                return None
            if self.record(named) is None or any(isinstance(item, n.Relation) for item in bare.items):
                continue
            pairs = [self.named(item) for item in named.items]
            names = [canonical(pair[0]).split("_")[0] for pair in pairs if pair is not None and pair[0] is not None]
            if len(set(names)) == len(names):
                values = tuple(pair[1] for pair in pairs if pair is not None)
                return (bare.items, values) if swap else (values, bare.items)
        return None

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
