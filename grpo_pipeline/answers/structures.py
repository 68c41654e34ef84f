"""Primaries of the grammar: numbers, symbols, brackets, functions, fractions, roots, matrices, big operators."""

from abc import ABC, abstractmethod
from fractions import Fraction
from types import TracebackType

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.tokens import Token
from grpo_pipeline.answers.verdicts import MAX_DEPTH, MAX_DIGITS, Refused

_MATRIX_ENVIRONMENTS = frozenset({"pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix", "array", "vmatrix", "Vmatrix"})
_LINES_ENVIRONMENTS = frozenset({"cases", "aligned", "align", "align*", "gathered", "split"})
_OPAQUE = frozenset({"f", "g", "h"})
_INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan", "cot": "acot", "sinh": "asinh", "cosh": "acosh",
             "tanh": "atanh", "sec": "asec", "csc": "acsc"}  # fmt: skip
_LONG_NAMES = {f"arc{name}": inverse for name, inverse in _INVERSES.items()} | {
    "lg": "log10", "binomial": "binom", "sgn": "sign", "arccot": "acot",
}  # fmt: skip


class _Depth:
    """Counts nesting; entering too deep refuses the input before Python's stack is in danger."""

    def __init__(self) -> None:
        self.level = 0

    def __enter__(self) -> None:
        self.level += 1
        if self.level > 3 * MAX_DEPTH:
            raise Refused("over_limit", "nesting")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.level -= 1


class StructureParser(ABC):
    """A token cursor and everything that starts with one telling token."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.in_bars = False
        self.in_builder = False
        self.in_integral = False
        self._depth = _Depth()

    @abstractmethod
    def separated(self, stop: tuple[str, ...]) -> n.Node: ...
    @abstractmethod
    def relation(self) -> n.Node: ...
    @abstractmethod
    def item(self) -> n.Node: ...
    @abstractmethod
    def sum(self) -> n.Node: ...
    @abstractmethod
    def product(self) -> n.Node: ...
    @abstractmethod
    def factor(self) -> n.Node: ...
    @abstractmethod
    def exponent(self) -> n.Node: ...
    @abstractmethod
    def starts_item(self, token: Token) -> bool: ...

    def deeper(self) -> _Depth:
        """Guard one level of nesting."""
        return self._depth

    def peek(self, ahead: int = 0) -> Token:
        """The next token without taking it."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        """Take the next token."""
        token = self.tokens[self.position]
        if token.kind == "end":
            raise Refused("unreadable", "ends too early")
        self.position += 1
        return token

    def expect(self, value: str) -> None:
        """Take a token that must be `value`."""
        if self.next().value != value:
            raise Refused("unreadable", f"expected {value!r}")

    def primary(self) -> n.Node:
        """The smallest complete part."""
        token = self.next()
        if token.kind == "num":
            return self.number(token.value)
        if token.kind in ("sym", "const"):
            return self.symbol(token)
        if token.kind == "open":
            return self.bracket(token.value)
        if token.kind == "func":
            return self.function(token.value)
        if token.kind == "set":
            return n.NamedSet(token.value)
        if token.kind == "op" and token.value == "|" and not self.in_bars:
            self.in_bars = True
            inner = self.sum()
            self.in_bars = False
            self.expect("|")
            return n.Call("abs", (inner,))
        if token.kind == "cmd":
            return self.command(token.value)
        raise Refused("unreadable", f"unexpected {token.value!r}")

    def number(self, text: str) -> n.Node:
        """A literal, repeating decimals included."""
        if self.peek().kind == "cmd" and self.peek().value in ("overline", "bar", "dot") and "." in text:
            self.next()
            return n.Number(_repeating(text, self.raw_group()))
        return read_number(text)

    def symbol(self, token: Token) -> n.Node:
        """A symbol with subscript and primes, applied to arguments if a bracket follows."""
        name = token.value
        subscripted = False
        while self.peek().kind == "op" and self.peek().value in ("_", "'"):
            if self.next().value == "'":
                name += "'"
            else:
                part = self.raw_group() if self.peek().value == "{" else self.next().value
                name += f"_{part}"
            subscripted = True
        if token.kind == "const" and not subscripted:
            return n.Constant(name)
        if name in _OPAQUE and [self.peek(k).value for k in range(6)] == ["^", "{", "-", "1", "}", "("]:
            self.position += 5
            name += "^-1"
        if self.peek().value == "(" and self.peek().kind == "open":
            applied = self.applied(name)
            if applied is not None:
                return applied
        return n.Symbol(name)

    def applied(self, name: str) -> n.Node | None:
        """f(...) is an unknown function; P(x), Phi(x, y) may be a name or a product, and is kept as "apply"."""
        start = self.position
        self.next()
        inner = self.bracket("(")
        args = inner.items if isinstance(inner, n.Sequence) else (inner,)
        if name[0] in _OPAQUE:
            return n.Call(f"opaque:{name}", args)
        if len(args) > 1 and len(name) == 1 and name.isupper() and isinstance(inner, n.Sequence):
            return inner  # P(1, 2): a point with its label
        if all(isinstance(a, n.Symbol | n.Number) for a in args):
            return n.Call("apply", (n.Symbol(name), *args))
        self.position = start
        return None

    def raw_group(self) -> str:
        """The text of a braced group, as a name."""
        self.expect("{")
        parts: list[str] = []
        level = 1
        while True:
            value = self.next().value
            level += (value == "{") - (value == "}")
            if level == 0:
                return "".join(parts)
            parts.append(value)

    def braced(self) -> n.Node:
        """{ expression }."""
        self.expect("{")
        return self.bracket("{")

    def bracket(self, left: str) -> n.Node:
        """What follows an opening bracket: a group, a tuple, an interval or a set."""
        bars, self.in_bars = self.in_bars, False
        builder, self.in_builder = self.in_builder, left == "{set"
        try:
            with self.deeper():
                return self._bracket(left)
        finally:
            self.in_bars, self.in_builder = bars, builder

    def _bracket(self, left: str) -> n.Node:
        items: list[n.Node] = []
        if self.peek().kind != "close" and self.peek().value != ">":
            items.append(self.item())
            if left == "{set" and self.peek().value in ("|", ":"):
                self.next()
                self.in_builder = False
                items = [self.separated(stop=("close",))]
                self.expect("set}")
                return items[0]
            while self.peek().kind == "sep":
                self.next()
                if self.peek().kind in ("close", "sep"):
                    if self.peek().kind == "close":
                        items.append(n.Words(""))  # (0,) is no group
                    continue
                items.append(self.item())
        right = self.next().value
        return _close(left, right, items)

    def argument(self) -> n.Node:
        """One LaTeX argument: a braced group, one digit, or one primary."""
        token = self.peek()
        if token.value == "{" and token.kind == "open":
            return self.braced()
        if token.kind == "num" and token.value[0].isdigit():
            if len(token.value) > 1:
                self.tokens[self.position] = Token("num", token.value[1:], False)
            else:
                self.next()
            return n.Number(Fraction(int(token.value[0])))
        return self.primary()

    def function(self, name: str) -> n.Node:
        """sin x, sin^2 x, log_2 8, sqrt(3), exp(2)."""
        base = power = None
        while self.peek().kind == "op" and self.peek().value in ("_", "^"):
            if self.next().value == "_":
                base = self.argument()
            else:
                power = self.exponent()
        args = self.function_arguments()
        if power == n.Number(Fraction(-1)) and name in _INVERSES:
            name, power = _INVERSES[name], None
        node: n.Node
        if name == "sqrt":
            node = n.Call("root", (args[0], n.Number(Fraction(2))))
        elif name == "cbrt":
            node = n.Call("root", (args[0], n.Number(Fraction(3))))
        elif name == "log" and base is not None:
            node = n.Call("log", (args[0], base))
        elif name == "frac" and len(args) == 2:
            node = n.Div(args[0], args[1])
        else:
            node = n.Call(_LONG_NAMES.get(name, name), args)
        return n.Pow(node, power) if power is not None else node

    def function_arguments(self) -> tuple[n.Node, ...]:
        """Bracketed arguments, or the factors that stand directly behind the name."""
        with self.deeper():
            if self.peek().kind == "open" and self.peek().value in ("(", "{"):
                inner = self.primary()
                return inner.items if isinstance(inner, n.Sequence) else (inner,)
            if self.peek().kind == "op" and self.peek().value == "-":
                self.next()
                return (n.Mul((n.Number(Fraction(-1)), self.factor())),)
            node = self.factor()
            while self.starts_item(self.peek()) and self.peek().kind not in ("func", "open"):
                if self.in_integral and self.peek().value == "d":
                    break
                node = n.Mul((node, self.factor()))
            return (node,)

    def command(self, name: str) -> n.Node:
        """\\frac, \\sqrt, \\binom, big operators, environments."""
        with self.deeper():
            if name == "frac":
                return n.Div(self.argument(), self.argument())
            if name == "sqrt":
                return self.root()
            if name in ("binom", "dbinom", "tbinom"):
                return n.Call("binom", (self.argument(), self.argument()))
            if name in ("sum", "prod", "int"):
                return self.big_operator(name)
            if name == "lim":
                return self.limit()
            if name == "begin":
                return self.environment()
            if name == "mathbb":
                return n.NamedSet(self.raw_group())
            if name in ("overline", "bar", "overrightarrow", "widehat", "tilde", "widetilde", "dot"):
                return n.Symbol(f"{name}({self.raw_group() if self.peek().value == '{' else self.next().value})")
        raise Refused("unreadable", f"command \\{name}")

    def root(self) -> n.Node:
        """\\sqrt[index]{radicand}; \\sqrt12 is read as the root of 12."""
        index: n.Node = n.Number(Fraction(2))
        if self.peek().value == "[" and self.peek().kind == "open":
            self.next()
            index = self.sum()
            self.expect("]")
        token = self.peek()
        radicand = self.primary() if token.kind == "num" else self.argument()
        return n.Call("root", (radicand, index))

    def big_operator(self, kind: str) -> n.Node:
        """\\sum_{k=1}^{n} body, and the same for \\prod and \\int."""
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
        self.in_integral, outside = kind == "int" or self.in_integral, self.in_integral
        body = self.product()
        self.in_integral = outside
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
        """\\lim_{x \\to a} body."""
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


def _close(left: str, right: str, items: list[n.Node]) -> n.Node:
    """The node for a bracket pair with its items."""
    pair = left + right
    if pair in ("floorfloor", "ceilceil") and len(items) == 1:
        return n.Call(left, (items[0],))
    if left in ("{", "{set"):
        if right != {"{": "}", "{set": "set}"}[left]:
            raise Refused("unreadable", "brackets do not match")
        if left == "{" and len(items) == 1:
            return items[0]
        return n.Sequence("{", "}", tuple(items)) if items else n.NamedSet("empty")
    if pair not in ("()", "[]", "(]", "[)", "<>"):
        raise Refused("unreadable", "brackets do not match")
    if len(items) == 1 and (pair == "()" or isinstance(items[0], n.Matrix)):
        return items[0]
    return n.Sequence(left, right, tuple(items))


def read_number(text: str) -> n.Number:
    """A decimal or whole literal, exponent notation included, exactly."""
    mantissa, _, exponent = text.replace("E", "e").partition("e")
    if len(exponent.lstrip("+-")) > 4 or abs(int(exponent or 0)) > MAX_DIGITS:
        raise Refused("over_limit", f"exponent {exponent[:20]}")
    value = Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0)
    digits = len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa.rstrip(".") else 0
    return n.Number(value, digits)


def _repeating(text: str, period: str) -> Fraction:
    """0.1 and "6" for 0.1666..."""
    if not period.isdecimal() or len(period) > 100:
        raise Refused("unreadable", "a repeating part that is no number")
    whole, _, fixed = text.partition(".")
    head = Fraction(int(whole + fixed or 0), 10 ** len(fixed))
    return head + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
