"""Properties that hold for every answer, drawn by hypothesis."""

from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_pipeline.answers import check, extract_answer

settings.register_profile("answers", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("answers")

whole = st.integers(-(10**12), 10**12)
small = st.integers(-50, 50)
positive = st.integers(1, 50)
leaf = small.map(str) | st.sampled_from(["x", "y", "\\pi", "\\sqrt{2}", "n", "\\frac{1}{3}", "0.25"])
wrapping = st.sampled_from(
    [" {} ", "\n{}\n", "\\,{}\\;", "\\left({}\\right)", "{{{}}}", "$${}$$", "\\({}\\)", "**{}**", "{}."]
)
respelling = st.sampled_from(
    [("\\frac", "\\dfrac"), ("\\frac", "\\tfrac"), ("\\pi", "π"), ("(", "\\left("), (" + ", "+")]
)
PIECES = "\\frac{ \\sqrt{ } { ( ) [ ] 1 2 x ^ _ + - * / = < , \\pi \\sin \\text{ \\boxed{ \\pm ! % | &"


def larger(inner):
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: f"\\frac{{{p[0]}}}{{{p[1]}}}"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]}) + ({p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]})({p[1]})"),
        st.tuples(inner, st.integers(2, 3)).map(lambda p: f"({p[0]})^{{{p[1]}}}"),
        inner.map(lambda p: f"\\sqrt{{{p}}}"),
    )


expression = st.recursive(leaf, larger, max_leaves=5)
answer = st.one_of(
    expression,
    st.lists(expression, min_size=2, max_size=4).map(", ".join),
    st.lists(expression, min_size=2, max_size=3).map(lambda items: f"({', '.join(items)})"),
    st.tuples(small, positive).map(lambda p: f"[{p[0]}, {p[0] + p[1]})"),
    st.tuples(small, small).map(lambda p: f"\\begin{{pmatrix}} {p[0]} \\\\ {p[1]} \\end{{pmatrix}}"),
)


def verdict(gold, text, mode="answer"):
    return check(gold, text, mode).verdict


@given(answer)
def test_reflexive(text):
    assert verdict(text, text) == "correct"
    assert verdict(text, f"${text}$") == "correct"


@given(answer, answer)
def test_symmetric(one, other):
    """Symmetric for values without units, bases, percent signs and choices, where the conventions are not."""
    assert (verdict(one, other) == "correct") == (verdict(other, one) == "correct")


@given(answer, wrapping)
@example("\\frac{1}{2}", "{{{}}}")
def test_stable_under_spacing_and_wrapping(text, wrap):
    if "," in text and ("left" in wrap or wrap == "{{{}}}"):
        return  # a bracket around a list makes it another thing
    assert verdict(text, wrap.format(text)) == "correct"


@given(answer, respelling)
def test_stable_under_equivalent_spellings(text, change):
    other = text.replace(*change)
    if change[0] == "(":
        other = other.replace(")", "\\right)")
    assert verdict(text, other) == "correct"


@given(whole, whole)
def test_integers_are_exact(one, other):
    assert (verdict(str(one), f"{other:,}") == "correct") == (one == other)


@given(small, positive, small, positive)
def test_fractions_compare_by_value(a, b, c, d):
    expected = Fraction(a, b) == Fraction(c, d)
    assert (verdict(f"\\frac{{{a}}}{{{b}}}", f"{c}/{d}") == "correct") == expected


@given(small, small, small, small)
def test_products_are_multiplied_out(a, b, c, d):
    expanded = f"{a * c}x^2 + {a * d + b * c}x + {b * d}"
    assert verdict(f"({a}x + {b})({c}x + {d})", expanded) == "correct"
    assert verdict(f"({a}x + {b})({c}x + {d})", expanded + " + 1") == "wrong"


@given(st.lists(small, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_lists_have_no_order_and_tuples_have(numbers, rng):
    shuffled = list(numbers)
    rng.shuffle(shuffled)
    one, other = ", ".join(map(str, numbers)), ", ".join(map(str, shuffled))
    assert verdict(one, other) == "correct"
    assert (verdict(f"({one})", f"({other})") == "correct") == (numbers == shuffled)


@given(small, positive, st.booleans(), st.booleans())
def test_inequalities_are_intervals(low, size, closed_low, closed_high):
    interval = f"{'[' if closed_low else '('}{low}, {low + size}{']' if closed_high else ')'}"
    left, right = (" \\le " if closed else " < " for closed in (closed_low, closed_high))
    chain = f"{low}{left}x{right}{low + size}"
    assert verdict(interval, chain) == "correct"
    assert verdict(chain, interval) == "correct"


@given(st.text(max_size=60), st.text(max_size=60))
@example("\ud800", "\ud800")
@example("5", "\x00")
def test_no_unicode_makes_it_raise(gold, text):
    for mode in ("answer", "solution"):
        assert check(gold, text, mode).reason not in ("internal_error", "worker_died")


@given(st.lists(st.sampled_from(PIECES.split()), max_size=20))
def test_no_latex_makes_it_raise(parts):
    text = " ".join(parts)
    for gold in ("5", text):
        assert check(gold, text).reason not in ("internal_error", "worker_died")


@given(st.text(alphabet="ab {}1\\", max_size=30))
def test_a_box_is_found_whatever_stands_around(noise):
    if "\\boxed" not in noise:
        assert extract_answer(noise.replace("\\", "") + " \\boxed{12} end") == "12"
