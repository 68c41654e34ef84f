import pytest

from grpo_pipeline.store import Store
from grpo_pipeline.store.gc import collect, plan_gc
from grpo_pipeline.store.lineage import lineage, render_lineage


@pytest.fixture
def diamond(store, helpers):
    root = store.build(helpers.spec(stage="problems"), 1, helpers.make)
    left = store.build(helpers.spec(stage="left", parents=(root,)), 1, helpers.make)
    right = store.build(helpers.spec(stage="right", parents=(root,)), 2, helpers.make)
    top = store.build(helpers.spec(stage="top", round=1, parents=(left, right)), 1, helpers.make)
    return root, left, right, top


def test_tree_goes_back_to_the_roots(diamond):
    root, _, _, top = diamond
    node = lineage(top)
    assert [parent.stage for parent in node.parents] == ["left", "right"]
    assert node.parents[0].parents[0] is node.parents[1].parents[0]
    assert node.parents[0].parents[0].fingerprint == root.fingerprint
    assert node.parents[0].parents[0].parents == ()


def test_text_shows_rows_and_does_not_repeat_branches(store, helpers, diamond):
    root, left, right, top = diamond
    last = store.build(helpers.spec(stage="last", round=2, parents=(top, left)), 1, helpers.make)
    short = {ref.stage: ref.fingerprint[:12] for ref in (root, left, right, top, last)}
    assert render_lineage(lineage(last)).splitlines() == [
        f"last, round 2 [{short['last']}]: checked 3 rows",
        f"├─ top, round 1 [{short['top']}]: checked 3 rows",
        f"│  ├─ left, round 0 [{short['left']}]: checked 3 rows",
        f"│  │  └─ problems, round 0 [{short['problems']}]: checked 3 rows",
        f"│  └─ right, round 0 [{short['right']}]: checked 6 rows",
        f"│     └─ problems, round 0 [{short['problems']}]: checked 3 rows",
        f"└─ left, round 0 [{short['left']}]: checked 3 rows (see above)",
    ]


def test_parents_elsewhere_and_removed_are_said(tmp_path, helpers, diamond):
    _, _, right, top = diamond
    elsewhere = Store(tmp_path / "other").build(helpers.spec(stage="other", parents=(top,)), 1, helpers.make)
    (line,) = [line for line in render_lineage(lineage(elsewhere)).splitlines() if "top" in line]
    assert line.endswith(f"in another store, {top.root}")
    Store(top.root).files.remove(right.path)
    (line,) = [line for line in render_lineage(lineage(top)).splitlines() if "right" in line]
    assert line.endswith("removed")


def test_long_chains_of_diamonds_stay_cheap(store, helpers):
    refs = (store.build(helpers.spec(stage="start"), 1, helpers.make),) * 2
    for i in range(8):
        refs = tuple(
            store.build(helpers.spec(stage=f"s{side}", round=i, parents=refs), 1, helpers.make) for side in (0, 1)
        )
    # 2 ** 8 paths lead back, over 16 artifacts.
    assert len(render_lineage(lineage(refs[0])).splitlines()) < 40


def test_gc_keeps_what_the_newest_rounds_need(store, helpers):
    base = store.build(helpers.spec(stage="problems"), 1, helpers.make)
    loose = store.build(helpers.spec(stage="loose"), 1, helpers.make)
    rounds = []
    parent = base
    for i in range(1, 5):
        used = store.build(helpers.spec(stage="used", round=i, parents=(base,)), 1, helpers.make)
        rounds.append((used, store.build(helpers.spec(stage="made", round=i, parents=(used,)), 1, helpers.make)))
        parent = used
    plan = plan_gc(store.root, keep_last=2)
    assert set(plan.keep) == {base, *rounds[2], *rounds[3]}
    assert set(plan.remove) == {loose, *rounds[0], *rounds[1]}
    assert plan.bytes > 0
    assert len(store.artifacts()) == 10  # a plan changes nothing
    assert sorted(collect(plan)) == sorted(ref.path for ref in plan.remove)
    assert set(store.artifacts()) == set(plan.keep)
    assert parent.read("checked").height == 3
    assert plan_gc(store.root, keep_last=2).remove == ()


@pytest.mark.usefixtures("diamond")
def test_gc_keeps_far_ancestors(store):
    assert plan_gc(store.root, keep_last=1).remove == ()


def test_gc_leaves_builds_that_can_go_on_and_their_parents(store, helpers):
    old = store.build(helpers.spec(stage="old"), 1, helpers.make)
    store.build(helpers.spec(stage="new", round=3), 1, helpers.make)

    def fail(index):
        raise ZeroDivisionError

    for number, parents in ((3, (old,)), (0, ())):
        with pytest.raises(ZeroDivisionError):
            store.build(helpers.spec(stage="broken", round=number, parents=parents), 1, fail)
    plan = plan_gc(store.root, keep_last=1)
    assert plan.remove == ()
    assert list(plan.stale) == [helpers.spec(stage="broken", round=0).fingerprint]
    collect(plan)
    assert store.files.children("staging") == [helpers.spec(stage="broken", round=3, parents=(old,)).fingerprint]


def test_gc_keeps_what_a_person_made_and_what_that_was_made_from(store, helpers):
    labels = store.build(helpers.spec(stage="step_labels"), 1, helpers.make)
    unused = store.build(helpers.spec(stage="step_scores"), 1, helpers.make)
    relabelled = store.build(helpers.spec(stage="relabel", parents=(labels,)), 1, helpers.make)
    judged = store.build(helpers.spec(stage="judge", parents=(labels,)), 1, helpers.make)
    imported = store.build(helpers.spec(stage="imported"), 1, helpers.make)
    newest = store.build(helpers.spec(stage="used", round=3, parents=(imported,)), 1, helpers.make)

    def fail(index):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # a judge's answers cost hours; it is gone on with
        store.build(helpers.spec(stage="judge", parents=(relabelled,)), 1, fail)
    plan = plan_gc(store.root, keep_last=1)
    assert plan.remove == (unused,)
    assert plan.stale == {}
    assert set(plan.keep) == {labels, relabelled, judged, imported, newest}
    assert plan.by_hand == (judged,)  # the others are needed: by the newest round, or by the build under way
    collect(plan)
    assert set(store.artifacts()) == {labels, relabelled, judged, imported, newest}


def test_gc_does_not_touch_what_is_being_built(store, helpers):
    old = store.build(helpers.spec(round=0), 1, helpers.make)
    store.build(helpers.spec(round=1), 1, helpers.make)
    plan = plan_gc(store.root, keep_last=1)
    assert plan.remove == (old,)
    with store._lock(helpers.spec(round=0)):
        assert collect(plan) == []
    assert old.read("checked").height == 3
    with pytest.raises(ValueError, match="at least"):
        plan_gc(store.root, keep_last=0)
