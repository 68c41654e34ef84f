"""Small questions about the shape of a node that a comparison asks."""

from fractions import Fraction

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import free_symbols, is_scalar
from grpo_pipeline.answers.names import flatten, spread

_ORDERED = ("(", "[", "<")


def unwrap(node: n.Node) -> n.Node:
    """A list of one item is that item, and so is a set of one number or one tuple."""
    while True:
        if isinstance(node, n.Listing) and len(node.items) == 1:
            node = node.items[0]
        elif isinstance(node, n.Sequence) and node.left == "{" and len(node.items) == 1 and _is_point(node.items[0]):
            node = spread(node.items[0])
        else:
            return node


def _is_point(node: n.Node) -> bool:
    """Whether a solution set may hold it: a number or a tuple, but no set or interval."""
    return is_scalar(node) or (isinstance(node, n.Sequence) and node.left + node.right == "()" and len(node.items) > 1)


def is_braced(node: n.Node) -> bool:
    """Whether a set in braces stands there."""
    return isinstance(node, n.Sequence) and node.left == "{"


def unordered(node: n.Node) -> bool:
    """Whether order is not part of the answer."""
    return isinstance(node, n.Listing) or (isinstance(node, n.Sequence) and node.left == "{")


def unordered_items(node: n.Node) -> list[n.Node]:
    """The items of a list or set, each plus-minus spread out."""
    if isinstance(node, n.Listing):
        return list(node.items) if node.join == ";" else flatten(node.items)
    return flatten(node.items) if isinstance(node, n.Sequence) else [node]


def bracket_pair(node: n.Sequence) -> str:
    """The kind of brackets; angle brackets count as round ones."""
    return "()" if node.left == "<" else node.left + node.right


def as_vector(node: n.Node) -> tuple[n.Node, ...] | None:
    """The entries of an ordered sequence, a column or a row."""
    if isinstance(node, n.Sequence) and node.left in _ORDERED and node.left + node.right in ("()", "[]", "<>"):
        return node.items
    if isinstance(node, n.Matrix):
        if all(len(row) == 1 for row in node.rows):
            return tuple(row[0] for row in node.rows)
        if len(node.rows) == 1:
            return node.rows[0]
    return None


def is_set_operation(node: n.Node) -> bool:
    """Whether a union, intersection or difference stands there."""
    if isinstance(node, n.Relation):
        return node.ops == ("in",) and is_set_operation(node.operands[1])
    return isinstance(node, n.SetOp)


def as_set(node: n.Node) -> n.Node:
    """A list of numbers, or one number, beside a set is the set of them."""
    if isinstance(node, n.Listing) and all(is_scalar(item) for item in node.items):
        return n.Sequence("{", "}", node.items)
    return n.Sequence("{", "}", (node,)) if is_scalar(node) else node


def difference(relation: n.Relation) -> n.Node:
    """Left side minus right side."""
    left, right = relation.operands
    return n.Add((left, n.Mul((n.Number(Fraction(-1)), right))))


def variables(relation: n.Relation) -> set[str]:
    """The variables on both sides."""
    return set().union(*(free_symbols(part) for part in relation.operands))


def ascending(relation: n.Relation) -> n.Relation:
    """A chain of > read from right to left."""
    if relation.ops and set(relation.ops) <= {">", ">="}:
        flipped = tuple({">": "<", ">=": "<="}[op] for op in reversed(relation.ops))
        return n.Relation(tuple(reversed(relation.operands)), flipped)
    return relation
