"""A recursive-descent grammar from tokens to nodes.

It accepts a whitelist of mathematics, builds plain nodes and evaluates nothing. Depth is capped, so no
input can exhaust the stack; each token is read once, so time is linear in their number.
"""

from fractions import Fraction

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.structures import StructureParser
from grpo_pipeline.answers.tokens import Token
from grpo_pipeline.answers.verdicts import Refused
from grpo_pipeline.answers.vocabulary import DENIALS, LETTER_UNITS, SCALES

RELATIONS = frozenset({"=", "~", "<", "<=", ">", ">=", "!=", "in"})
_STOPS = frozenset({"end", "pmod", "not", "Rightarrow", "Longrightarrow", "implies", "iff"})
_STARTS = frozenset({"num", "sym", "const", "func", "open", "cmd", "set"})


class Parser(StructureParser):
    """The arithmetic and relational levels; `StructureParser` reads commands and brackets."""

    def listing(self) -> n.Node:
        """The whole answer: items separated by commas, semicolons, "and", "or"."""
        node = self.separated(stop=("end",))
        if self.peek().kind != "end":
            raise Refused("unreadable", f"unexpected {self.peek().value!r}")
        return node

    def separated(self, stop: tuple[str, ...]) -> n.Node:
        """Items up to a token of kind `stop`; groups of assignments stay together."""
        groups: list[list[n.Node]] = [[]]
        joins: list[str] = []
        while True:
            groups[-1].append(self.item())
            token = self.peek()
            if token.kind != "sep":
                if token.kind in stop or not self.starts_item(token):
                    break
                if not token.gap:
                    raise Refused("unreadable", "items without a separator")
                raise Refused("unreadable", "two answers beside each other")
            join = self.separator()
            if self.peek().kind in stop:
                break
            if join != ",":
                groups.append([])
            joins.append(join)
        return _assemble(groups, joins)

    def separator(self) -> str:
        """One separator; ", and" is a comma."""
        kinds = []
        while self.peek().kind == "sep":
            kinds.append(self.next().value)
        if "," in kinds or not kinds:
            strong = [k for k in kinds if k != ","]
            return "," if not strong or strong == ["and"] else strong[0]
        return kinds[0]

    def starts_item(self, token: Token) -> bool:
        """Whether a token can begin a term."""
        return token.kind in _STARTS and token.value not in _STOPS

    def item(self) -> n.Node:
        """One relation with the words that may stand behind it."""
        node = self.relation()
        self.trailing_words()
        return node

    def trailing_words(self) -> None:
        """Pass over a unit or a remark: words, powers of units, "per", "/" between units."""
        while self.peek().kind == "word":
            word = self.next().value.strip(".:;()").casefold()
            if word in DENIALS or word.endswith("n't"):
                raise Refused("unreadable", f"a remark that changes the answer: {word}")
            self.unit_power()
            slash = self.peek().kind == "op" and self.peek().value == "/"
            unit = self.peek(1 if slash else 0)
            if slash and unit.kind == "word":
                self.next()
            elif (slash or word == "per") and unit.kind == "sym" and unit.value in LETTER_UNITS:
                if slash:
                    self.next()
                self.next()
                self.unit_power()

    def unit_power(self) -> None:
        """Pass over the power of a unit."""
        if self.peek().value == "^" and self.peek().kind == "op":
            self.next()
            self.exponent()

    def relation(self) -> n.Node:
        """A = b, a < b <= c, x in S."""
        operands = [self.ratio()]
        ops: list[str] = []
        while self.peek().kind == "op" and self.peek().value in RELATIONS:
            ops.append(self.next().value)
            if ops[-1] == "=" and self.peek().value == "=":
                self.next()
            operand = self.ratio()
            if ops[-1] == "in" and isinstance(operand, n.Symbol) and operand.name in ("R", "N", "Z", "Q", "C"):
                operand = n.NamedSet(operand.name)
            operands.append(operand)
        return n.Relation(tuple(operands), tuple(ops)) if ops else operands[0]

    def ratio(self) -> n.Node:
        """A : b : c."""
        parts = [self.set_expression()]
        while self.peek().kind == "op" and self.peek().value == ":" and not self.in_builder:
            self.next()
            parts.append(self.set_expression())
        return n.Ratio(tuple(parts)) if len(parts) > 1 else parts[0]

    def set_expression(self) -> n.Node:
        """Unions, intersections, differences."""
        node = self.sum()
        while self.peek().kind == "op" and self.peek().value in ("cup", "cap", "minus"):
            op = {"cup": "|", "cap": "&", "minus": "-"}[self.next().value]
            node = n.SetOp(op, node, self.sum())
        return node

    def sum(self) -> n.Node:
        """Terms with + and -."""
        with self.deeper():
            terms: list[n.Node] = []
            sign = self.sign()
            while True:
                term = self.product()
                if sign == "-" and terms and _is_set(term):
                    terms[-1] = n.SetOp("-", terms[-1], term)  # R - {1}
                else:
                    terms.append(_signed(sign, term))
                token = self.peek()
                if token.kind != "op" or token.value not in ("+", "-", "pm", "mp"):
                    break
                sign = self.sign()
            return terms[0] if len(terms) == 1 else n.Add(tuple(terms))

    def sign(self) -> str:
        """Signs in a row: "+", "-", "pm" or "mp"."""
        negative, special = False, ""
        while self.peek().kind == "op" and self.peek().value in ("+", "-", "pm", "mp"):
            value = self.next().value
            if value in ("pm", "mp"):
                special = value
                if value == "pm" and self.peek().value == "/":
                    raise Refused("unreadable")
            else:
                negative ^= value == "-"
        if special:
            return {"pm": "mp", "mp": "pm"}[special] if negative else special
        return "-" if negative else "+"

    def product(self) -> n.Node:
        """Factors with *, / and by juxtaposition; / binds the next factor only."""
        node = self.factor()
        while True:
            token = self.peek()
            if token.kind == "op" and token.value == "*":
                self.next()
                node = _times(node, self.signed_factor())
            elif token.kind == "op" and token.value == "/":
                if self.peek(1).kind == "word":
                    self.next()
                    self.trailing_words()
                    continue
                self.next()
                node = n.Div(node, self.signed_factor())
            elif token.kind == "op" and token.value == "mod":
                self.next()
                node = n.Call("mod", (node, self.factor()))
            elif token.kind == "scale":
                node = _times(node, n.Number(Fraction(SCALES[self.next().value.casefold()])))
            elif token.kind == "op" and token.value == "|" and not self.in_bars and not self.in_builder:
                node = _times(node, self.factor())
            elif self.starts_item(token):
                previous = self.tokens[self.position - 1]
                if token.kind == "num" and previous.kind == "num" and not _ends_in_power(node):
                    node = self.spaced_numbers(node)
                else:
                    node = self.juxtapose(node)
            else:
                return node

    def spaced_numbers(self, node: n.Node) -> n.Node:
        """1 1/2: a whole number, a space and a fraction. Other numbers beside each other are refused."""
        bottom = self.peek(2)
        if (
            isinstance(node, n.Number)
            and node.value.denominator == 1
            and self.peek(1).value == "/"
            and bottom.kind == "num"
            and bottom.value.isdecimal()
            and self.peek().value.isdecimal()
            and int(bottom.value[:50]) != 0
        ):
            top = self.next().value
            self.next()
            self.next()
            return n.Add((node, n.Number(Fraction(int(top), int(bottom.value)))))
        raise Refused("unreadable", "numbers beside each other")

    def juxtapose(self, node: n.Node) -> n.Node:
        r"""2x is a product; 2\frac{1}{2} with whole numbers is a sum."""
        is_fraction = self.peek().kind == "cmd" and self.peek().value == "frac"
        factor = self.factor()
        mark = factor.name if isinstance(factor, n.Call) and factor.name in ("deg", "percent") else None
        if mark and is_fraction and isinstance(factor, n.Call):
            factor = factor.args[0]
        if (
            is_fraction
            and isinstance(node, n.Number)
            and node.digits == 0
            and node.value.denominator == 1
            and isinstance(factor, n.Div)
            and isinstance(factor.top, n.Number)
            and isinstance(factor.bottom, n.Number)
        ):
            joined: n.Node = n.Add((node, factor))
        else:
            joined = _times(node, factor)
        return n.Call(mark, (joined,)) if mark and is_fraction else joined

    def signed_factor(self) -> n.Node:
        """A factor that may carry a sign, as in 2*-3."""
        sign = self.sign()
        return _signed(sign, self.factor())

    def factor(self) -> n.Node:
        """A primary with powers and postfix marks."""
        with self.deeper():
            node = self.primary()
            while True:
                token = self.peek()
                if token.kind != "op":
                    return node
                if token.value == "^":
                    self.next()
                    node = n.Pow(node, self.exponent())
                elif token.value == "!":
                    self.next()
                    double = self.peek().value == "!" and self.peek().kind == "op"
                    if double:
                        self.next()
                    node = n.Call("factorial2" if double else "factorial", (node,))
                elif token.value == "%":
                    self.next()
                    node = n.Call("percent", (node,))
                elif token.value == "°":
                    self.next()
                    if self.peek().value in ("C", "F", "K") and self.peek().kind == "sym":
                        self.next()
                    node = n.Call("deg", (node,))
                else:
                    return node

    def exponent(self) -> n.Node:
        """What stands behind ^: a group, or one primary with its sign; 2^3^2 is 2^(3^2)."""
        with self.deeper():
            sign = self.sign()
            node = self.braced() if self.peek().value == "{" else self.primary()
            if self.peek().kind == "op" and self.peek().value == "^":
                self.next()
                node = n.Pow(node, self.exponent())
            return _signed(sign, node)


def _is_set(node: n.Node) -> bool:
    return isinstance(node, n.NamedSet) or (isinstance(node, n.Sequence) and node.left == "{")


def _signed(sign: str, node: n.Node) -> n.Node:
    if sign == "+":
        return node
    if sign == "-":
        if isinstance(node, n.Number):
            return n.Number(-node.value, node.digits)
        return n.Mul((n.Number(Fraction(-1)), node))
    return n.Call(sign, (node,))


def _times(left: n.Node, right: n.Node) -> n.Node:
    factors = (*(left.factors if isinstance(left, n.Mul) else (left,)), right)
    return n.Mul(factors)


def _ends_in_power(node: n.Node) -> bool:
    """2^6 3^5 is a product, 6 3 is nothing."""
    last = node.factors[-1] if isinstance(node, n.Mul) else node
    return isinstance(last, n.Pow)


def _assemble(groups: list[list[n.Node]], joins: list[str]) -> n.Node:
    """Flat items, unless every group is a run of two or more assignments to the same names."""
    if len(groups) > 1 and all(len(g) > 1 for g in groups):
        names = [[item.operands[0] if isinstance(item, n.Relation) else None for item in g] for g in groups]
        if all(row == names[0] for row in names) and None not in names[0]:
            return n.Listing(tuple(n.Listing(tuple(g)) for g in groups), ";")
    items = [item for group in groups for item in group]
    if len(items) == 1 and not joins:
        return items[0]
    strong = {j for j in joins if j in ("and", "or")}
    return n.Listing(tuple(items), strong.pop() if len(strong) == 1 else ",")
