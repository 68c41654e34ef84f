"""Forms: what each line means, worked out by hand; and that nothing is lost on the way there and back."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.forms import FORMS, find_form
from grpo_pipeline.exchange.records import PairRecord, StepRecord, hard, whole
from grpo_pipeline.problems.records import RawRecord

GENERAL = ["math-shepherd", "trl-stepwise", "rlhflow", "processbench", "prm800k"]
TREE = {
    "question": "q",
    "final_answer": "3",
    "question_id": 7,
    "reasoning_steps": {
        "text": "q",
        "mc_value": 0.5,
        "children": [
            {"text": "a", "mc_value": 0.25, "children": [{"text": "c", "mc_value": 1.0, "children": []}]},
            {"text": "a", "mc_value": 0.75, "children": []},
        ],
    },
}


patient = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def raws(rows):
    return [RawRecord(f"file, line {i}", row) for i, row in enumerate(rows, 1)]


def read(form, *rows):
    return FORMS[form].read(raws(rows))


def record(steps="ab", labels=(1.0, 0.0), **further):
    return StepRecord("q", tuple(steps), tuple(labels), **further)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["Step 1: x", "a Step 1: b", "ки", "x\n\ny", " ", "", "数学 😀", "+", "-", "# Answer\n\n4"]
)
labels = st.none() | st.sampled_from([0.0, 0.5, 1.0])


@st.composite
def step_records(draw):
    steps = draw(st.lists(texts, max_size=4))
    return StepRecord(draw(texts), tuple(steps), tuple(draw(labels) for _ in steps))


@pytest.mark.parametrize("form", GENERAL)
@patient
@given(records=st.lists(step_records(), max_size=4))
def test_what_a_form_holds_comes_back(form, records):
    written = FORMS[form].write(records)
    assert len(written.rows) + written.skipped.total() == len(records)
    rows = json.loads(json.dumps(written.rows))
    again = FORMS[form].read(raws(rows))
    assert FORMS[form].write(again).rows == rows
    if form in ("math-shepherd", "trl-stepwise", "rlhflow"):
        back = iter(again)
        kept = [r for r in records if not isinstance(whole(r), str)]
        if form == "math-shepherd":
            kept = [r for r in kept if any(r.question == a.question and whole(r)[0] == a.steps for a in again)]
        for before in kept:
            after = next(back)
            steps, values = whole(before)
            assert (after.question, after.steps) == (before.question, steps)
            assert after.labels == tuple(float(hard(value)) for value in values)


@patient
@given(records=st.lists(step_records(), max_size=4))
def test_prm800k_keeps_neutral_and_unrated(records):
    written = FORMS["prm800k"].write(records)
    again = FORMS["prm800k"].read(raws(written.rows))
    kept = [r for r in records if r.steps]
    assert [(r.question, r.steps, r.labels) for r in again] == [(r.question, r.steps, r.labels) for r in kept]


nodes = st.recursive(
    st.builds(lambda t, k: {"text": t, "mc_value": k / 8, "children": []}, texts, st.integers(0, 8)),
    lambda inner: st.builds(
        lambda t, k, c: {"text": t, "mc_value": k / 8, "children": c},
        texts,
        st.integers(0, 8),
        st.lists(inner, max_size=3),
    ),
    max_leaves=8,
)


def count(node):
    return 1 + sum(map(count, node["children"]))


@patient
@given(st.lists(nodes, min_size=1, max_size=3), st.randoms())
def test_trees_come_back_whatever_the_order_of_their_nodes(trees, random):
    rows = [
        {"question": "q", "final_answer": "1", "reasoning_steps": tree, "question_id": i}
        for i, tree in enumerate(trees)
    ]
    records = read("math-aps-tree", *rows)
    assert len(records) == sum(map(count, trees))
    random.shuffle(records)
    written = FORMS["math-aps-tree"].write(records)
    assert written.rows == rows
    assert not written.skipped


def test_a_tree_labels_each_node_once():
    records = read("math-aps-tree", TREE)
    assert [(r.steps, r.labels, r.gold_answer) for r in records] == [
        ((), (), "3"),
        (("a",), (0.25,), "3"),
        (("a", "c"), (None, 1.0), "3"),
        (("a",), (0.75,), "3"),
    ]


def test_prefixes_are_cut_where_others_end():
    values = [("q", 0.5), ("q\n\none", 0.25), ("q\n\none\n\ntwo ", 1.0), ("q\n\nother", 0.0), ("q\n\none", 0.75)]
    row = {
        "question": "q",
        "final_answer": "3",
        "question_id": 7,
        "reasoning_steps": [{"solution_prefix": prefix, "mc_value": value} for prefix, value in values],
    }
    records = read("math-aps", row)
    assert [(r.steps, r.labels) for r in records] == [
        ((), ()),
        (("one",), (0.25,)),
        (("one", "two"), (None, 1.0)),
        (("other",), (0.0,)),
        (("one",), (0.75,)),
    ]
    assert FORMS["math-aps"].write(records).rows == [row]


def test_math_shepherd_by_hand():
    row = {
        "input": "1 + 1 - 0? Step 1: 1 + 1 = 2 ки\nStep 2: 2 - 0 = 2. The answer is: 2 ки",
        "label": "1 + 1 - 0? Step 1: 1 + 1 = 2 +\nStep 2: 2 - 0 = 2. The answer is: 2 -",
        "task": "GSM8K",
    }
    (found,) = read("math-shepherd", row)
    assert found.question == "1 + 1 - 0?"
    assert found.steps == ("1 + 1 = 2", "2 - 0 = 2. The answer is: 2")
    assert found.labels == (1.0, 0.0)
    assert found.final_answer == "2"
    assert FORMS["math-shepherd"].write([found]).rows == [row]


def test_math_shepherd_keeps_irregular_numbers():
    row = {"input": "q Step 1: a ки\nStep 3: b ки", "label": "q Step 1: a +\nStep 3: b -", "task": "MATH"}
    (found,) = read("math-shepherd", row)
    assert found.steps == ("Step 1: a", "Step 3: b")
    assert FORMS["math-shepherd"].write([found]).rows == [row]


@pytest.mark.parametrize(
    ("text", "judged", "message"),
    [
        ("q Step 1: a ки", "q Step 1: b +", "differs from character"),
        ("q Step 1: a ки", "q Step 1: a ки", r"expected \+ or -"),
        ("q Step 1: a ки", "q Step 1: a + more", "goes on after the last step"),
        ("q Step 1: aки", "q Step 1: a+", 'expected "question Step 1'),
        ("q and no step", "q and no step", 'expected "question Step 1'),
        ("q first ки", "q first +", 'expected "question Step 1'),
    ],
)
def test_math_shepherd_refuses(text, judged, message):
    with pytest.raises(UserError, match=f"line 1.*{message}"):
        read("math-shepherd", {"input": text, "label": judged})


def test_processbench_by_hand():
    base = {"id": "x-0", "generator": "m", "problem": "q", "steps": ["a", "b", "c"], "final_answer_correct": False}
    found = read("processbench", base | {"label": 1}, base | {"label": -1}, base | {"label": 2})
    assert [r.labels for r in found] == [(1.0, 0.0, None), (1.0, 1.0, 1.0), (1.0, 1.0, 0.0)]
    with pytest.raises(UserError, match="index of one of 3 steps, found 3"):
        read("processbench", base | {"label": 3})
    with pytest.raises(UserError, match="whole number, found True"):
        read("processbench", base | {"label": True})


def test_processbench_from_own_records():
    own = {"rollout_id": "r1", "policy_id": "p", "correct": True}
    written = FORMS["processbench"].write([record(extra=own), record(labels=(None, 0.0))])
    assert written.rows == [
        {"problem": "q", "steps": ["a", "b"], "label": 1, "id": "r1", "generator": "p", "final_answer_correct": True}
    ]
    assert written.skipped == {"undecided": 1}


def prm800k_line():
    def completion(text, rating):
        return {"text": text, "rating": rating, "flagged": False}

    def step(completions, human=None, chosen=None):
        return {"completions": completions, "human_completion": human, "chosen_completion": chosen}

    steps = [
        step([completion("a", -1), completion("b", 0)], chosen=1),
        step([completion("c", -1)], human={"text": "h", "rating": None, "source": "human", "flagged": False}),
        step(None, human={"text": "only", "rating": None, "source": "human", "flagged": False}),
        step([completion("w", -1), completion("x # Answer\n\n4", 1)]),
        step([]),
    ]
    return {
        "labeler": "l",
        "question": {"problem": "q", "ground_truth_answer": "4"},
        "label": {"steps": steps, "total_time": 1, "finish_reason": "found_error"},
    }


def test_prm800k_by_hand():
    records = read("prm800k", prm800k_line())
    assert [(r.steps, r.labels) for r in records] == [
        (("b", "h", "only", "w"), (0.5, None, None, 0.0)),
        (("a",), (0.0,)),
        (("b", "c"), (None, 0.0)),
        (("b", "h", "only", "x # Answer\n\n4"), (None, None, None, 1.0)),
    ]
    assert records[3].final_answer == "4"
    assert {r.gold_answer for r in records} == {"4"}
    assert FORMS["prm800k"].write(records[::-1]).rows == [prm800k_line()]


def test_prm800k_says_what_is_missing():
    line = prm800k_line()
    line["label"]["steps"][0]["completions"][0]["rating"] = 2
    with pytest.raises(UserError, match="line 1, step 0: rating 2"):
        read("prm800k", line)
    with pytest.raises(UserError, match="line 1: not PRM800K's nesting"):
        read("prm800k", {"question": {"problem": "q"}})
    assert FORMS["prm800k"].write(read("prm800k", prm800k_line())[1:]).skipped == {"without_path": 3}


def test_prm800k_steps_of_other_forms_are_their_labelled_steps():
    rows = FORMS["prm800k-steps"].write([record("abc", (1.0, None, 0.0), final_answer="4")]).rows
    assert [(r["responses"], r["next_response"], r["rating"], r["answer"]) for r in rows] == [
        ([], "a", 1, None),
        (["a", "b"], "c", -1, "4"),
    ]


def test_gaps_in_the_labels():
    assert whole(record("abc", (1.0, 0.0, None))) == (("a", "b"), (1.0, 0.0))
    assert whole(record("ab", (None, 0.0))) == "unlabelled_step"
    assert whole(record("ab", (None, None))) == "unlabelled"


def test_rlhflow_by_hand():
    turns = [
        {"role": "user", "content": "q Step 1: a"},
        {"role": "assistant", "content": "+"},
        {"role": "user", "content": "Step 2: b"},
        {"role": "assistant", "content": "-"},
    ]
    (found,) = read("rlhflow", {"conversations": turns})
    assert (found.question, found.steps, found.labels) == ("q", ("Step 1: a", "Step 2: b"), (1.0, 0.0))
    assert FORMS["rlhflow"].write([found]).rows == [{"conversations": turns}]
    assert FORMS["rlhflow"].write([record()]).rows[0]["question"] == "q"
    with pytest.raises(UserError, match="cannot be told"):
        read("rlhflow", {"conversations": [{"role": "user", "content": "q a"}, turns[1]]})
    with pytest.raises(UserError, match="a sign after each step, found 3 turns"):
        read("rlhflow", {"conversations": turns[:3]})
    with pytest.raises(UserError, match="turn 0: expected a text of the user"):
        read("rlhflow", {"conversations": turns[1:3]})


def test_trl_refuses_labels_that_do_not_fit():
    with pytest.raises(UserError, match="for each of 2 completions"):
        read("trl-stepwise", {"prompt": "q", "completions": ["a", "b"], "labels": [True]})
    with pytest.raises(UserError, match="no field 'prompt'"):
        read("trl-stepwise", {"completions": [], "labels": []})


def test_pairs_come_back():
    rows = [
        {"prompt": "q", "chosen": "a", "rejected": "b", "score": 1},
        {"prompt": [{"role": "user", "content": "q"}], "chosen": [], "rejected": []},
    ]
    pairs = read("dpo", *rows)
    assert pairs[0] == PairRecord("q", "a", "b", "dpo", {"score": 1})
    assert FORMS["dpo"].write(pairs).rows == rows


def test_an_extra_stays_with_its_form():
    (found,) = read("trl-stepwise", {"prompt": "q", "completions": ["a"], "labels": [True], "note": 1})
    assert "note" not in FORMS["processbench"].write([found]).rows[0]


def test_unknown_forms_are_listed():
    with pytest.raises(UserError, match="no form 'x'; the forms are math-shepherd, trl-stepwise"):
        find_form("x")


def completion(text="s", rating=1, **step):
    return {"completions": [{"text": text, "rating": rating}], "human_completion": None, "chosen_completion": 0, **step}


@pytest.mark.parametrize(
    ("question", "step"),
    [
        ({"problem": None}, completion()),
        ({"problem": "q", "ground_truth_answer": 5}, completion()),
        ({"problem": "q"}, completion(text=None)),
        ({"problem": "q"}, completion(chosen_completion=5)),
        ({"problem": "q"}, completion(chosen_completion="first")),
    ],
)
def test_prm800k_of_wrong_types_is_refused_by_line(question, step):
    with pytest.raises(UserError, match="file, line 1: not PRM800K's nesting"):
        read("prm800k", {"question": question, "label": {"steps": [step]}})


@pytest.mark.parametrize("where", ["root", "child"])
def test_a_tree_without_texts_is_refused_by_line(where):
    tree = json.loads(json.dumps(TREE))
    node = tree["reasoning_steps"] if where == "root" else tree["reasoning_steps"]["children"][0]
    node["text"] = 3
    with pytest.raises(UserError, match=r"file, line 1: node .*text 3 is no text"):
        read("math-aps-tree", tree)


def test_a_solution_without_steps_is_not_called_right():
    written = FORMS["processbench"].write([record("", ()), record()])
    assert (len(written.rows), dict(written.skipped)) == (1, {"no_steps": 1})
