"""Settings as TOML: tomllib, which did not write them, reads the same back."""

import doctest
import tomllib

from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from grpo_pipeline import settings_text
from grpo_pipeline.config import RunConfig
from grpo_pipeline.settings_text import flatten, toml_lines

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
SETTINGS = st.recursive(
    st.dictionaries(TEXT, VALUES | st.lists(VALUES, max_size=3), max_size=3),
    lambda inner: st.dictionaries(TEXT, VALUES | inner | st.lists(inner, max_size=2), max_size=3),
    max_leaves=8,
)


@limits(max_examples=60)
@given(SETTINGS)
def test_toml_reads_back_what_was_written(settings):
    assert tomllib.loads("\n".join(toml_lines(settings))) == settings


def test_a_whole_configuration_is_written_as_a_person_would():
    lines = toml_lines(RunConfig().model_dump(mode="json"))
    assert lines[:2] == ['name = "quickstart"', 'root = "runs"']
    assert lines[lines.index("[policy.optimizer]") - 1] == ""
    assert "stop = []" in lines
    assert "prm_dataset = null" in lines
    assert not any(word in line for line in lines for word in ("None", "True", "False", "'"))


def test_flat_names_are_those_of_overrides():
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [2]}) == {"a.b.c": 1, "a.d": {}, "e": [2]}


def test_doctests():
    assert doctest.testmod(settings_text) == (0, 1)
