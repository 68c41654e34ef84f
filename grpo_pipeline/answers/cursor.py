"""The token cursor below the grammar."""

from abc import ABC, abstractmethod
from types import TracebackType

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.tokens import Token
from grpo_pipeline.answers.verdicts import MAX_DEPTH, Refused


class _Depth:
    """Counts nesting; entering too deep refuses the input before Python's stack is in danger."""

    def __init__(self) -> None:
        self.level = 0

    def __enter__(self) -> None:
        self.level += 1
        if self.level > 3 * MAX_DEPTH:
            raise Refused("over_limit", "nesting")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.level -= 1


class Cursor(ABC):
    """A position in the tokens, and the levels of the grammar that each part may call."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.in_bars = False
        self.in_builder = False
        self.in_integral = False
        self.bound: set[str] = set()  # i and e where a sum runs over them
        self._depth = _Depth()

    @abstractmethod
    def separated(self, stop: tuple[str, ...]) -> n.Node:
        """Items with separators between them."""

    @abstractmethod
    def relation(self) -> n.Node:
        """One relation."""

    @abstractmethod
    def item(self) -> n.Node:
        """One relation with a remark behind it."""

    @abstractmethod
    def sum(self) -> n.Node:
        """Terms."""

    @abstractmethod
    def product(self) -> n.Node:
        """Factors."""

    @abstractmethod
    def factor(self) -> n.Node:
        """A primary with its powers."""

    @abstractmethod
    def exponent(self) -> n.Node:
        """What stands behind ^."""

    @abstractmethod
    def primary(self) -> n.Node:
        """The smallest complete part."""

    @abstractmethod
    def bracket(self, left: str) -> n.Node:
        """What follows an opening bracket."""

    @abstractmethod
    def starts_item(self, token: Token) -> bool:
        """Whether a token can begin a factor."""

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
