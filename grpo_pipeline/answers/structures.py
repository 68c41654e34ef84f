"""Primaries of the grammar: numbers, symbols, brackets, functions, fractions."""

from fractions import Fraction

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.literals import close_bracket, read_number, repeating
from grpo_pipeline.answers.operators import OperatorParser
from grpo_pipeline.answers.tokens import Token
from grpo_pipeline.answers.verdicts import Refused

_OPAQUE = frozenset({"f", "g", "h"})
_INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan", "cot": "acot", "sinh": "asinh", "cosh": "acosh",
             "tanh": "atanh", "sec": "asec", "csc": "acsc"}  # fmt: skip
_LONG_NAMES = {f"arc{name}": inverse for name, inverse in _INVERSES.items()} | {
    "lg": "log10", "binomial": "binom", "sgn": "sign", "arccot": "acot",
}  # fmt: skip


class StructureParser(OperatorParser):
    """Everything that starts with one telling token."""

    def primary(self) -> n.Node:  # noqa: PLR0911 - one case a kind
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
            return n.Number(repeating(text, self.raw_group()))
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
        if token.kind == "const" and not subscripted and name not in self.bound:
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
        """f(...) is an unknown function; P(x), Phi(x, y) may be a name or a product: "apply"."""
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

    def bracket(self, left: str) -> n.Node:
        """What follows an opening bracket: a group, a tuple, an interval or a set."""
        bars, self.in_bars = self.in_bars, False
        named = self.peek().kind == "sym" and self.peek(1).value in ("|", ":", "in")
        builder, self.in_builder = self.in_builder, left == "{set" or (left == "{" and named)
        try:
            with self.deeper():
                return self._bracket(left)
        finally:
            self.in_bars, self.in_builder = bars, builder

    def _bracket(self, left: str) -> n.Node:
        items: list[n.Node] = []
        if self.peek().kind != "close" and self.peek().value != ">":
            items.append(self.item())
            if self.in_builder and self.peek().value in ("|", ":"):
                self.next()
                self.in_builder = False
                items = [self.separated(stop=("close",))]
                self.expect("set}" if left == "{set" else "}")
                return items[0]
            while self.peek().kind == "sep":
                self.next()
                if self.peek().kind in ("close", "sep"):
                    if self.peek().kind == "close":
                        items.append(n.Words(""))  # (0,) is no group
                    continue
                items.append(self.item())
        right = self.next().value
        return close_bracket(left, right, items)

    def function(self, name: str) -> n.Node:
        """Sin x, sin^2 x, log_2 8, sqrt(3), exp(2)."""
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

    def command(self, name: str) -> n.Node:  # noqa: PLR0911 - one case a kind
        r"""\frac, \sqrt, \binom, big operators, environments."""
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
                return n.NamedSet(self.raw_group() if self.peek().value == "{" else self.next().value)
            if name in ("overline", "bar", "overrightarrow", "widehat", "tilde", "widetilde", "dot"):
                return n.Symbol(f"{name}({self.raw_group() if self.peek().value == '{' else self.next().value})")
        raise Refused("unreadable", f"command \\{name}")
