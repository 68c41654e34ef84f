"""Throw random answers at the checker: it must not raise, hang, or write a file.

    python benchmarks/fuzz_checker.py [--count 100000] [--seed 0] [--quick] [--json FILE]

Inputs are random unicode, random LaTeX from a list of fragments, mutated well-formed answers, and nested or
repeated hostile pieces. The exit code is 1 if anything was wrong.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from grpo_pipeline.answers import check, count_reasons

_PLAIN = r"""0 1 2 7 12 -3 0.5 .5 1,234 x y n i e f a_1 x^2 ( ) [ ] { } | < > , ; : ! % ' " & \\ $ + - * / ^ _
    = ~"""
_LATEX = r"""\frac{1}{2} \frac \frac12 \sqrt{2} \sqrt[3]{x} \sqrt \pi \infty \sin \cos \log_2 \ln \exp \left(
    \right) \left \right] \begin{pmatrix} \end{pmatrix} \begin{cases} \end{cases} \begin{array}{cc}
    \end{array} \text{ \text{and} \boxed{5} \boxed{ \boxed \{ \} \cup \cap \setminus \in \le \ge \ne
    \approx \pm \mp \times \cdot \div ^\circ \sum_{k=1}^{5} \prod_{k=1}^{3} \int_0^1 \lim_{x\to0} dx
    \binom{5}{2} \lfloor \rfloor \overline{3} \mathbb{R} \mathrm{m} \emptyset \cdots \ldots \% \, \!
    \; \quad \mod \bmod \theta \Delta \langle \rangle 10^{9} 9^{9^{9}} 1e999 100000! 5!! #### **5**
    <answer> </answer> <think> </think> or and to percent degrees million dollars PM 3:45 1011_2
    __import__('os').system('touch pwned') open('pwned','w') \write18{touch pwned} ½ √2 × − ∞ ≤ π ² ₁
    ٣"""
FRAGMENTS = (*_PLAIN.split(), *_LATEX.split(), "\ud800", "answer is ", "Answer: ", "\\text{ cm}")
Maker = Callable[[random.Random], str]


def random_unicode(rng: random.Random) -> str:
    top = rng.choice((0x7F, 0x2FF, 0x2FFF, 0xFFFF, 0x1FFFF))
    return "".join(chr(rng.randrange(top)) for _ in range(rng.randrange(40)))


def random_latex(rng: random.Random) -> str:
    return rng.choice(("", " ")).join(rng.choice(FRAGMENTS) for _ in range(rng.randrange(1, 14)))


def mutated(rng: random.Random) -> str:
    text = list(rng.choice(SEEDS))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(3)
        if kind == 0:
            text[at:at] = rng.choice(FRAGMENTS)
        elif kind == 1:
            del text[at : at + rng.randrange(1, 4)]
        else:
            text[at:at] = text[at : at + rng.randrange(1, 8)]
    return "".join(text)


def repeated(rng: random.Random) -> str:
    opening, closing = rng.choice(PAIRS)
    count = rng.choice((2, 10, 100, 2_000))
    return opening * count + "2" + closing * rng.choice((count, count - 1, 0))


PAIRS = (
    ("(", ")"), ("\\frac{1}{", "}"), ("\\sqrt{", "}"), ("{", "}"), ("x^{", "}"), ("-", ""), ("|", "|"),
    ("\\left(", ")"), ("1+", ""), ("2^", ""), ("\\text{", "}"), ("\\boxed{", "}"), ("\\sin ", ""), ("[", ")"),
    ("\\{", "\\}"), ("5!", ""), ("\\begin{pmatrix}", "\\end{pmatrix}"), ("\\pm ", ""), ("1,", ""),
    ("x_{", "}"),
    ("\\log_{2}", ""), ("a", ""),
)  # fmt: skip
SEEDS = (
    "\\frac{3}{4}", "x^2+2x+1", "(1, 2)", "[0, \\infty)", "\\{1, 2, 3\\}", "x > 5", "2\\sqrt{3}", "50\\%",
    "3:45 PM", "1011_2", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "y = 2x + 1", "-1 < x \\le 3",
    "5 \\pm \\sqrt{2}", "\\text{Monday}", "e^{i\\pi}", "\\sin^2 x", "12\\text{ cm}^2", "1{,}234",
    "2\\frac{1}{2}", "so $\\boxed{\\frac{1}{2}}$", "The answer is 5.", "(-\\infty, 2) \\cup (3, \\infty)",
    "\\sum_{k=1}^{10} k^2", "#### 72", "\\log_2 8", "2^{100}", "\\angle ABC = 30^\\circ",
)  # fmt: skip
MAKERS: dict[str, Maker] = {
    "unicode": random_unicode, "latex": random_latex, "mutated": mutated, "repeated": repeated,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="2,000 inputs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    count = 2_000 if arguments.quick else arguments.count
    rng = random.Random(arguments.seed)
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)  # where an executed injection would leave its file
    raised: list[tuple[str, str, str]] = []
    times: list[float] = []
    slow = 0
    checks = []
    check("\\frac{\\pi}{4}", "\\int_0^1 \\frac{1}{1+x^2} dx", "answer")  # starts a worker
    started = time.perf_counter()
    for k in range(count):
        maker = rng.choice(list(MAKERS))
        text, gold = MAKERS[maker](rng), rng.choice(SEEDS) if k % 4 else MAKERS["latex"](rng)
        mode = rng.choice(("answer", "solution"))
        before, cpu = time.perf_counter(), time.process_time()
        try:
            checks.append(check(gold, text, mode))
            if checks[-1].reason in ("internal_error", "worker_died"):
                raised.append((checks[-1].reason, gold, text))
        except Exception as error:  # noqa: BLE001 - any exception is what this looks for
            raised.append((repr(error), gold, text))
        times.append(time.perf_counter() - before)
        if times[-1] > 3:  # on a busy machine a call may wait for its processor
            used = time.process_time() - cpu
            slow += used > 1 or checks[-1].reason == "time_limit"
            print(f"slow: {times[-1]:.1f} s by the clock, {used:.3f} s computed: {gold!r} {text[:100]!r}")
    for error, gold, text in raised[:20]:
        print(f"raised: {error} {gold!r} {text[:300]!r}")
    files = sorted(p.name for p in Path(folder.name).iterdir())
    times.sort()
    figures = {
        "inputs": count,
        "seed": arguments.seed,
        "raised": len(raised),
        "slower_than_3s": slow,
        "waited_longer_than_3s": sum(t > 3 for t in times) - slow,
        "files_written": files,
        "seconds": round(time.perf_counter() - started, 1),
        "median_ms": round(1e3 * times[len(times) // 2], 3),
        "p99_ms": round(1e3 * times[int(0.99 * len(times))], 2),
        "max_ms": round(1e3 * times[-1], 1),
        "verdicts": dict(Counter(c.verdict for c in checks)),
        "reasons": count_reasons(checks),
    }
    print(json.dumps(figures, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if raised or files or slow:
        sys.exit(1)


if __name__ == "__main__":
    main()
