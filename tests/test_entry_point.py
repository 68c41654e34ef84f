import sys

import pytest

from grpo_pipeline import entry_point
from grpo_pipeline.entry_point import load_entry_point, source_hash
from grpo_pipeline.errors import UserError


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(entry_point, "_imported", {})
    path = tmp_path / "mine_for_hashing.py"
    path.write_text("def half(frame):\n    return 0.5\n")
    yield path
    sys.modules.pop("mine_for_hashing", None)


def test_an_edited_function_has_another_hash(module):
    before = source_hash("mine_for_hashing:half", "x")
    assert source_hash("mine_for_hashing:half", "x") == before
    module.write_text("def half(frame):\n    return 0.25\n")
    assert source_hash("mine_for_hashing:half", "x") != before


def test_the_hash_imports_nothing(module):
    source_hash("mine_for_hashing:half", "x")
    assert "mine_for_hashing" not in sys.modules


def test_a_function_edited_after_its_import_is_refused(module):
    assert load_entry_point("mine_for_hashing:half", "x")(None) == 0.5
    module.write_text("def half(frame):\n    return 0.25\n")
    with pytest.raises(UserError, match="was edited after this process had imported it; start the process again"):
        load_entry_point("mine_for_hashing:half", "x")


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere:f", "cannot import 'nowhere'"), ("half", "is not of the form 'module:function'")]
)
def test_what_is_not_there_is_said(name, message):
    with pytest.raises(UserError, match=f"setting.x: .*{message}"):
        source_hash(name, "setting.x")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def half(frame:\n", "importing 'mine_for_hashing' failed: SyntaxError: .*mine_for_hashing.py, line 1"),
        ("0 / 0\n", "importing 'mine_for_hashing' failed: ZeroDivisionError: .*mine_for_hashing.py, line 1"),
        (
            "def half(frame):\n    return frame / 0\n",
            "'mine_for_hashing:half' failed: ZeroDivisionError: .*mine_for_hashing.py, line 2, in half",
        ),
    ],
)
def test_what_a_users_code_raises_is_said_with_its_place(module, source, message):
    module.write_text(source)
    with pytest.raises(UserError, match=f"setting.x: {message}"):
        load_entry_point("mine_for_hashing:half", "setting.x")(1)


def test_a_package_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package" / "__init__.py").write_text("0 / 0\n")
    with pytest.raises(UserError, match=r"setting.x: importing the package of 'broken_package.mine' failed: ZeroDiv"):
        source_hash("broken_package.mine:half", "setting.x")
