"""What an equation or a list says the value is: x = 5 says 5, y = 2x + 1 says 2x + 1."""

from fractions import Fraction

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.canonical import canonical, free_symbols, is_scalar, walk
from grpo_pipeline.answers.identity import same_constants, same_functions
from grpo_pipeline.answers.sets import INEQUALITIES
from grpo_pipeline.answers.verdicts import Refused

MAX_PLUS_MINUS = 4


def is_name(node: n.Node) -> bool:  # noqa: PLR0911 - one case a kind
    """Whether a side of an equation only names the quantity: x, f(x), |AB|, AB, S_{ABC}, (x, y), A : B."""
    match node:
        case n.Symbol():
            return True
        case n.Call(name=name, args=args):
            if name == "apply":
                return True
            if name.startswith("opaque:"):
                return all(isinstance(arg, n.Symbol | n.Number | n.Constant) for arg in args)
            return name == "abs" and is_name(args[0])
        case n.Mul(factors=factors):
            symbols = all(isinstance(f, n.Symbol) for f in factors)
            prefixed = factors[0] in (n.Symbol("Delta"), n.Symbol("nabla"), n.Symbol("partial")) and len(factors) == 2
            return symbols and (prefixed or all(isinstance(f, n.Symbol) and _labels_a_point(f.name) for f in factors))
        case n.Sequence(left="(", items=items) | n.Ratio(parts=items):
            return all(is_name(item) for item in items)
    return False


def _labels_a_point(name: str) -> bool:
    return name[0].isupper() or name in ("angle", "triangle", "partial") or name.startswith("overline")


def value_of(relation: n.Relation, *, heavy: bool) -> tuple[n.Node | None, n.Node] | None:  # noqa: C901, PLR0911 - one rule after the other
    """(name, value) of an equation that gives a value, None of one that does not.

    Raises:
        Refused: undefined for a chain that contradicts itself, such as 41 = 42.
    """
    operands, ops = relation.operands, relation.ops
    if ops == ("in",) and is_name(operands[0]):
        return operands[0], operands[1]
    if not set(ops) <= {"=", "~"}:
        return None
    names = [part for part in operands if is_name(part)]
    values = [(part, ops[k - 1] if k else "=") for k, part in enumerate(operands) if not is_name(part)]
    if not values:
        # All sides are names: x = y. The last one is the value of the first (f(y) = y).
        return (operands[0], operands[-1]) if len(operands) == 2 and not isinstance(operands[0], n.Symbol) else None
    if len(names) + len(values) < 2 or (names and not (is_name(operands[0]) or is_name(operands[-1]))):
        return None
    name = names[0] if names else None
    first = values[0][0]
    if len(values) == 1:
        return name, first
    exact = [part for part, op in values if op == "="]
    if not all(is_scalar(part) for part in exact):
        return None
    constant = [not free_symbols(part) for part in exact]
    if all(constant):
        if not all(same_constants(exact[0], part, heavy=heavy) for part in exact[1:]):
            raise Refused("undefined", "an equation that is false")
        return name, exact[-1]
    if name is not None and len(exact) > 1 and constant[-1]:
        return name, exact[-1]
    if (name is not None or len(exact) > 2) and not any(constant):
        return (name, exact[-1]) if all(same_functions(exact[0], p, heavy=heavy) for p in exact[1:]) else None
    return (name, first) if len(exact) == 1 else None


def same_name(left: n.Node | None, right: n.Node | None) -> bool:
    """Names agree where both are given; f(x) and y name the same thing, f(x) and g(x) do not."""
    if left is None or right is None or canonical(left) == canonical(right):
        return True
    return isinstance(left, n.Symbol) != isinstance(right, n.Symbol)


def spread(node: n.Node) -> n.Node:
    """A plus-minus as the list of its two values."""
    signs = sum(isinstance(part, n.Call) and part.name in ("pm", "mp") for part in walk(node))
    if signs == 0 or isinstance(node, n.Listing | n.Sequence):
        return node
    if signs > MAX_PLUS_MINUS:
        raise Refused("over_limit", "too many plus-minus signs")
    return n.Listing((choose(node, upper=True), choose(node, upper=False)))


def choose(node: n.Node, *, upper: bool) -> n.Node:  # noqa: PLR0911 - one case a kind
    """The node with the upper (or lower) signs taken."""

    def go(part: n.Node) -> n.Node:
        return choose(part, upper=upper)

    match node:
        case n.Call(name="pm" | "mp" as name, args=(inner,)):
            positive = (name == "pm") == upper
            return go(inner) if positive else n.Mul((_MINUS_ONE, go(inner)))
        case n.Add(terms=terms):
            return n.Add(tuple(map(go, terms)))
        case n.Mul(factors=factors):
            return n.Mul(tuple(map(go, factors)))
        case n.Div(top=top, bottom=bottom):
            return n.Div(go(top), go(bottom))
        case n.Pow(base=base, exponent=exponent):
            return n.Pow(go(base), go(exponent))
        case n.Call(name=name, args=args):
            return n.Call(name, tuple(map(go, args)))
        case n.Relation(operands=operands, ops=ops):
            return n.Relation(tuple(map(go, operands)), ops)
        case n.Sequence(left=left, right=right, items=items):
            return n.Sequence(left, right, tuple(map(go, items)))
    return node


_MINUS_ONE = n.Number(Fraction(-1))


def flatten(items: tuple[n.Node, ...]) -> list[n.Node]:
    """Items of a list with each plus-minus spread out, and x = 1 or 2 carried on."""
    flat: list[n.Node] = []
    for item in items:
        opened = spread(item)
        flat.extend(opened.items if isinstance(opened, n.Listing) and opened.join != ";" else (opened,))
    return flat


def has_inequality(node: n.Node) -> bool:
    """Whether an inequality stands anywhere on the top levels."""
    if isinstance(node, n.Relation):
        return bool(set(node.ops) & INEQUALITIES)
    return isinstance(node, n.Listing) and any(has_inequality(item) for item in node.items)
