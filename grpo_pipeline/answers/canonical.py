"""A string for a node in which the order of terms and factors does not matter, and small walks over nodes."""

from collections.abc import Iterator

from grpo_pipeline.answers import nodes as n


def canonical(node: n.Node) -> str:  # noqa: C901, PLR0911 - one case a kind
    """Equal strings mean equal values; different strings mean nothing."""
    match node:
        case n.Number(value=value):
            return f"{value.numerator:x}" if value.denominator == 1 else f"{value.numerator:x}/{value.denominator:x}"
        case n.Symbol(name=name):
            return f"${name}"
        case n.Constant(name=name) | n.NamedSet(name=name):
            return f"#{name}"
        case n.Add(terms=terms):
            return f"+({','.join(sorted(map(canonical, terms)))})"
        case n.Mul(factors=factors):
            return f"*({','.join(sorted(map(canonical, factors)))})"
        case n.Div(top=top, bottom=bottom):
            return f"/({canonical(top)},{canonical(bottom)})"
        case n.Pow(base=base, exponent=exponent):
            return f"^({canonical(base)},{canonical(exponent)})"
        case n.Call(name=name, args=args):
            return f"{name}({','.join(map(canonical, args))})"
        case n.Matrix(rows=rows):
            return "M" + ";".join(",".join(map(canonical, row)) for row in rows)
        case n.Sequence(left=left, right=right, items=items):
            parts = [canonical(item) for item in items]
            return f"{left}{','.join(sorted(parts) if left == '{' else parts)}{right}"
        case n.BigOp(kind=kind, variable=variable, low=low, high=high, body=body):
            bounds = ",".join("" if bound is None else canonical(bound) for bound in (low, high))
            return f"{kind}[{variable},{bounds}]({canonical(body)})"
        case _:
            return repr(node)


def children(node: n.Node) -> tuple[n.Node, ...]:
    """The nodes directly below."""
    match node:
        case n.Add(terms=parts) | n.Mul(factors=parts) | n.Call(args=parts) | n.Ratio(parts=parts):
            return parts
        case n.Sequence(items=parts) | n.Listing(items=parts) | n.Relation(operands=parts):
            return parts
        case n.Div(top=left, bottom=right) | n.Pow(base=left, exponent=right) | n.SetOp(left=left, right=right):
            return (left, right)
        case n.BigOp(low=low, high=high, body=body):
            return tuple(part for part in (low, high, body) if part is not None)
        case n.Matrix(rows=rows):
            return tuple(entry for row in rows for entry in row)
        case _:
            return ()


def walk(node: n.Node) -> Iterator[n.Node]:
    """The node and everything below it."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(children(top))


def free_symbols(node: n.Node, bound: frozenset[str] = frozenset()) -> set[str]:
    """Names of the variables that are not bound by a big operator."""
    if isinstance(node, n.Symbol):
        return set() if node.name in bound else {node.name}
    if isinstance(node, n.BigOp):
        inner = free_symbols(node.body, bound | {node.variable})
        outer = [free_symbols(b, bound) for b in (node.low, node.high) if b is not None]
        return inner.union(*outer)
    found: set[str] = set()
    for child in children(node):
        found |= free_symbols(child, bound)
    return found


def decimal_digits(node: n.Node) -> int:
    """Significant digits of the longest decimal literal inside, 0 if everything is exact."""
    return max((part.digits for part in walk(node) if isinstance(part, n.Number)), default=0)


def is_scalar(node: n.Node) -> bool:
    """Whether the node stands for one number or one expression."""
    return isinstance(node, n.Number | n.Symbol | n.Constant | n.Add | n.Mul | n.Div | n.Pow | n.Call | n.BigOp)
