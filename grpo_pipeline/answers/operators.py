"""Operators with arguments of their own: roots, sums, products, integrals, limits, matrices, cases."""

from fractions import Fraction

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.cursor import Cursor
from grpo_pipeline.answers.tokens import Token
from grpo_pipeline.answers.verdicts import Refused

_MATRIX_ENVIRONMENTS = frozenset(
    {"pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix", "array", "vmatrix", "Vmatrix"}
)
_LINES_ENVIRONMENTS = frozenset({"cases", "aligned", "align", "align*", "gathered", "split"})


class OperatorParser(Cursor):
    """Reads what follows a command that takes arguments."""

    def argument(self) -> n.Node:
        """One LaTeX argument: a braced group, one digit, or one primary."""
        token = self.peek()
        if token.value == "{" and token.kind == "open":
            return self.braced()
        if token.kind == "num" and token.value[0].isdigit():
            if len(token.value) > 1 and not token.value[1].isdigit():
                raise Refused("unreadable", "an argument that is cut out of a decimal")
            if len(token.value) > 1:
                self.tokens[self.position] = Token("num", token.value[1:], False)
            else:
                self.next()
            return n.Number(Fraction(int(token.value[0])))
        return self.primary()

    def root(self) -> n.Node:
        r"""\sqrt[index]{radicand}; \sqrt12 is read as the root of 12."""
        index: n.Node = n.Number(Fraction(2))
        if self.peek().value == "[" and self.peek().kind == "open":
            self.next()
            index = self.sum()
            self.expect("]")
        token = self.peek()
        radicand = self.primary() if token.kind == "num" else self.argument()
        return n.Call("root", (radicand, index))

    def big_operator(self, kind: str) -> n.Node:
        r"""\sum_{k=1}^{n} body, and the same for \prod and \int."""
        variable, low, high = "", None, None
        while self.peek().kind == "op" and self.peek().value in ("_", "^"):
            if self.next().value == "^":
                high = self.exponent()
            elif kind == "int":
                low = self.argument()
            else:
                self.expect("{")
                variable = self.next().value
                self.expect("=")
                low = self.sum()
                self.expect("}")
        integral, bound = self.in_integral, self.bound
        self.in_integral, self.bound = integral or kind == "int", bound | {variable}
        body = self.product()
        self.in_integral, self.bound = integral, bound
        if kind == "int":
            factors = body.factors if isinstance(body, n.Mul) else (body,)
            if len(factors) < 2 or factors[-2] != n.Symbol("d") or not isinstance(factors[-1], n.Symbol):
                raise Refused("unreadable", "an integral without its differential")
            variable, rest = factors[-1].name, factors[:-2]
            body = n.Mul(rest) if rest else n.Number(Fraction(1))
        elif low is None or high is None:
            raise Refused("unreadable", "a sum without bounds")
        return n.BigOp(kind, variable, low, high, body)

    def limit(self) -> n.Node:
        r"""\lim_{x \to a} body."""
        self.expect("_")
        self.expect("{")
        variable = self.next().value
        self.expect("->")
        point = self.sum()
        self.expect("}")
        return n.BigOp("lim", variable, point, None, self.product())

    def environment(self) -> n.Node:
        """Matrices and lists of equations."""
        name = self.raw_group()
        if name == "array" and self.peek().value == "{":
            self.raw_group()
        rows: list[list[n.Node]] = [[]]
        while not (self.peek().kind == "cmd" and self.peek().value == "end"):
            token = self.peek()
            if token.kind == "op" and token.value in ("\\\\", "&"):
                self.next()
                if token.value == "\\\\":
                    rows.append([])
                continue
            rows[-1].append(self.item())
            if self.peek().kind == "sep":
                self.next()
        self.next()
        if self.raw_group() != name:
            raise Refused("unreadable", "environments do not match")
        filled = tuple(tuple(row) for row in rows if row)
        if name in _LINES_ENVIRONMENTS and all(len(row) == 1 for row in filled):
            return n.Listing(tuple(row[0] for row in filled), ",")
        if name not in _MATRIX_ENVIRONMENTS or not filled or len({len(row) for row in filled}) != 1:
            raise Refused("unreadable", "no matrix")
        matrix = n.Matrix(filled)
        return n.Call("det", (matrix,)) if name in ("vmatrix", "Vmatrix") else matrix
