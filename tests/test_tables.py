"""conform, scan and join; and that every table's file opens with polars and with datasets."""

import subprocess
import sys

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.errors import UserError
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.store import ShardResult, StageSpec, Store
from grpo_pipeline.store.shards import encode
from grpo_pipeline.tables import conform, empty, from_rows, join, join_keys, read, scan

SAMPLES = {
    pa.string(): ["größe", "b"],
    pa.int32(): [-1, 2**31 - 1],
    pa.int64(): [3, 2**63 - 1],
    pa.bool_(): [True, False],
    pa.float32(): [0.5, -0.25],
    pa.float64(): [0.1, 1e300],
}


def sample_table(name):
    """Two rows: one with every nullable value null and lists empty, one filled."""
    columns = {}
    for field in TABLES[name].schema:
        if pa.types.is_list(field.type):
            values = SAMPLES[field.type.value_type]
            columns[field.name] = [[], [*values, None] if field.type.value_field.nullable else values]
        else:
            columns[field.name] = list(SAMPLES[field.type])
        if field.nullable:
            columns[field.name][0] = None
    for prefix, kind in TABLES[name].open_columns.items():
        columns[f"{prefix}extra"] = [None, SAMPLES[kind][0]]
    if "problem_id" in columns:
        columns["problem_id"] = ["a", "b"]
    kinds = {**dict(zip(TABLES[name].schema.names, TABLES[name].schema.types, strict=True))}
    kinds |= {f"{prefix}extra": kind for prefix, kind in TABLES[name].open_columns.items()}
    return pa.table({c: pa.array(values, kinds[c]) for c, values in columns.items()}), columns


@pytest.mark.parametrize("name", TABLES)
def test_every_table_opens_with_polars_and_with_datasets(name, tmp_path):
    import datasets

    table, columns = sample_table(name)
    path = tmp_path / "part.parquet"
    path.write_bytes(encode(conform(table, name, "here")))
    kinds = [str(field.type) for field in pq.read_schema(path)]
    assert not [kind for kind in kinds if "large" in kind or "view" in kind]
    frame = pl.read_parquet(path)
    assert frame.to_dict(as_series=False) == columns
    dataset = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    assert dataset.to_dict() == columns
    # What datasets writes and polars holds comes back as the table.
    assert conform(frame, name, "here").equals(conform(table, name, "here"))
    assert conform(dataset.data.table, name, "here").equals(conform(table, name, "here"))


@pytest.mark.parametrize("name", TABLES)
def test_parts_of_a_table_concatenate_in_datasets(name, tmp_path):
    import datasets

    table, _ = sample_table(name)
    parts = []
    for i in range(2):
        path = tmp_path / f"{i}.parquet"
        path.write_bytes(encode(conform(table.slice(i, 1), name, "here")))
        parts.append(datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache")))
    assert datasets.concatenate_datasets(parts).num_rows == 2


def checked(**columns):
    row = {"rollout_id": "r", "problem_id": "p", "answer": None, "verdict": "wrong", "reason": "x"}
    return pl.DataFrame({**{name: [value] for name, value in row.items()}, "checker_version": ["1"], **columns})


def labels(**columns):
    row = dict.fromkeys(TABLES["step_labels"].schema.names, 0)
    row |= {"rollout_id": "r", "problem_id": "p", "label_source": "sampled"}
    row |= {"soft": 0.5, "ci_low": 0.25, "ci_high": 0.75}
    return pl.DataFrame({**{name: [value] for name, value in row.items()}, **columns})


def test_columns_are_put_in_order_and_types_narrowed():
    frame = labels().select(reversed(labels().columns))
    assert frame.schema["n_wrong"] == pl.Int64
    table = conform(frame, "step_labels", "here")
    assert table.schema.equals(TABLES["step_labels"].schema, check_metadata=True)
    assert table["soft"].to_pylist() == [0.5]


def test_descriptions_travel_with_the_file(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(encode(conform(checked(), "checked", "here")))
    assert pq.read_schema(path).field("verdict").metadata[b"description"].startswith(b"correct, wrong")


@pytest.mark.parametrize(
    ("frame", "table", "message"),
    [
        (
            checked().drop("verdict"),
            "checked",
            r"file.x: table checked: expected column verdict, found only rollout_id",
        ),
        (checked(extra=[1]), "checked", r"file.x: table checked: unknown column 'extra' \(int64\); expected only"),
        (checked(verdict=[1]), "checked", "file.x: table checked, column verdict: expected string, found int64"),
        (checked(verdict=[None]), "checked", "column verdict: expected no null, found 1, the first in row 0"),
        (labels(n_wrong=[2**31]), "step_labels", "column n_wrong: expected int32, found int64 that does not fit"),
        (labels(n_wrong=[1.0]), "step_labels", "column n_wrong: expected int32, found double"),
        (labels(hard=[True]), "step_labels", "column hard: expected int32, found bool"),
        (labels(soft=["0.5"]), "step_labels", "column soft: expected float, found large_string"),
        (labels(soft=[0.1]), "step_labels", r"column soft: expected float, found double.*such as 0.1"),
        (labels(soft=[1e300]), "step_labels", r"column soft: expected float, found double.*such as 1e\+300"),
        (labels(soft=[2**24 + 1]), "step_labels", "column soft: expected float, found int64 that does not fit"),
    ],
)
def test_mismatch_names_place_column_expected_and_found(frame, table, message):
    with pytest.raises(UserError, match=message):
        conform(frame, table, "file.x")


def test_first_null_is_named_by_row():
    frame = pl.concat([checked(), checked(), checked(verdict=pl.Series([None], dtype=pl.String))])
    with pytest.raises(UserError, match="found 1, the first in row 2"):
        conform(frame, "checked", "x")


def test_list_elements_are_null_only_where_a_label_may_be():
    table, _ = sample_table("prm_dataset")
    assert conform(table, "prm_dataset", "x")["soft"].to_pylist()[1][-1] is None
    broken = pl.from_arrow(table).with_columns(input_ids=pl.Series([[1], [None, 2]]))
    with pytest.raises(UserError, match="column input_ids: expected no null element, found 1"):
        conform(broken, "prm_dataset", "x")
    lossy = pl.from_arrow(table).with_columns(soft=pl.Series([[0.5], [None, 0.1]]))
    with pytest.raises(UserError, match=r"column soft.*such as 0.1"):
        conform(lossy, "prm_dataset", "x")


def test_null_rows_of_nullable_lists_stay_null():
    table, columns = sample_table("advantages")
    assert conform(table, "advantages", "x")["step_rewards"].to_pylist() == columns["step_rewards"]


def test_categories_all_null_columns_and_nan_are_taken_as_they_are():
    frame = checked().with_columns(verdict=pl.col("verdict").cast(pl.Categorical))
    assert conform(frame, "checked", "x")["verdict"].to_pylist() == ["wrong"]
    assert conform(checked(answer=[None]), "checked", "x").schema.field("answer").type == pa.string()
    nan = conform(labels(soft=[float("nan")]), "step_labels", "x")["soft"].to_pylist()[0]
    assert nan != nan


def test_open_columns_have_their_type_and_only_their_prefix():
    frame = from_rows([{"step": 1, "round": 0, "stage": "s", "kl": 1, "clip_ratio/low_mean": 0.1}], "metrics")
    assert conform(frame, "metrics", "x").schema.field("kl").type == pa.float64()
    table, _ = sample_table("advantages")
    assert conform(table, "advantages", "x").column_names[-1] == "reward_extra"
    with pytest.raises(UserError, match="unknown column 'bonus'"):
        conform(table.append_column("bonus", pa.array([1.0, 2.0])), "advantages", "x")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(width=32), st.integers(-(2**24), 2**24)), min_size=1, max_size=8))
def test_float_columns_keep_every_value_or_refuse(values):
    n = len(values)
    frame = pl.concat([labels()] * n).with_columns(soft=pl.Series([None if v is None else float(v) for v in values]))
    kept = conform(frame, "step_labels", "x")["soft"].to_pylist()
    assert str(kept) == str([None if v is None else float(v) for v in values])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_integer_columns_keep_every_value_or_refuse(values):
    frame = pl.concat([labels()] * len(values)).with_columns(n_wrong=pl.Series(values))
    fits = all(-(2**31) <= value < 2**31 for value in values)
    if fits:
        assert conform(frame, "step_labels", "x")["n_wrong"].to_pylist() == values
    else:
        with pytest.raises(UserError, match="n_wrong"):
            conform(frame, "step_labels", "x")


def test_from_rows_rounds_to_the_columns_type():
    row = dict.fromkeys(TABLES["step_labels"].schema.names, 0) | {"soft": 0.1, "rollout_id": "r"}
    frame = from_rows([row | {"problem_id": "p", "label_source": "sampled"}], "step_labels")
    assert frame.schema["soft"] == pl.Float32
    conform(frame, "step_labels", "x")
    assert from_rows([], "rollouts").equals(empty("rollouts"))
    with pytest.raises(UserError, match="unknown column 'nope'"):
        from_rows([{"nope": 1}], "steps")


def test_unknown_table_lists_the_tables():
    with pytest.raises(UserError, match="no table 'rollout'; the tables are problems, rollouts"):
        scan("rollout", "anywhere")


def test_scan_reads_all_finished_artifacts_and_filters(tmp_path):
    store = Store(tmp_path / "run")
    for stage, number in (("eval", 0), ("label", 0), ("label", 1)):
        frame = checked(rollout_id=[f"{stage}{number}"])
        spec = StageSpec(stage, 1, number, {}, (), 0)
        store.build(spec, 1, lambda _, frame=frame: ShardResult({"checked": frame}))
    with pytest.raises(ZeroDivisionError):
        store.build(StageSpec("late", 1, 2, {}, (), 0), 1, lambda _: 1 / 0)
    run = tmp_path / "run"

    def ids(**where):
        return read("checked", run, **where)["rollout_id"].to_list()

    assert ids() == ["eval0", "label0", "label1"]
    assert ids(stage="label") == ["label0", "label1"]
    assert ids(round=1) == ["label1"]
    assert ids(stage="eval", round=1) == []
    assert scan("steps", run).collect().equals(empty("steps"))
    assert scan("steps", str(run)).collect_schema() == empty("steps").schema
    spec = StageSpec("relabel", 1, 0, {}, tuple(store.artifacts(stage="label", round=0)), 0)
    store.build(spec, 1, lambda _: ShardResult({"checked": checked(rollout_id=["label0"])}))
    assert ids() == ["eval0", "label0", "label1"]  # relabelled rows are the same rows again
    assert ids(round=0) == ["eval0", "label0"]
    assert ids(stage="relabel") == ["label0"]
    with pytest.raises(UserError, match="no run here"):
        scan("steps", tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="no run here"):
        scan("steps", tmp_path / "folder")


@pytest.mark.parametrize(
    ("left", "right", "keys"),
    [
        ("rollouts", "problems", ("problem_id",)),
        ("rollouts", "checked", ("problem_id", "rollout_id")),
        ("steps", "rollouts", ("problem_id", "rollout_id")),
        ("steps", "step_labels", ("problem_id", "rollout_id", "step_index")),
        ("step_scores", "step_labels", ("problem_id", "rollout_id", "step_index")),
        ("steps", "completions", ("problem_id", "prefix_hash")),
        ("advantages", "checked", ("problem_id", "rollout_id")),
    ],
)
def test_keys_of_a_join(left, right, keys):
    assert join_keys(TABLES[left].schema.names, TABLES[right].schema.names) == keys
    assert join_keys(TABLES[right].schema.names, TABLES[left].schema.names) == keys


def test_tables_without_a_common_id_are_not_joined():
    with pytest.raises(UserError, match="nothing to join on"):
        join(empty("metrics"), empty("steps"))


def test_rollouts_that_share_a_prefix_share_its_completions():
    steps = pl.DataFrame({"rollout_id": ["a", "b"], "problem_id": "p", "step_index": 0, "prefix_hash": "h"})
    completions = pl.DataFrame(
        {"completion_id": ["x", "y"], "rollout_id": "a", "problem_id": "p", "step_index": 0, "prefix_hash": "h"}
    )
    joined = join(steps.lazy(), completions.lazy()).collect()
    assert sorted(joined.select("rollout_id", "completion_id").rows()) == [
        ("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"),
    ]  # fmt: skip


def test_join_keeps_the_lefts_names():
    left = pl.DataFrame({"rollout_id": ["a", "b"], "text": ["one", "two"]})
    right = pl.DataFrame({"rollout_id": ["b"], "text": ["step"]})
    assert join(left, right).to_dicts() == [{"rollout_id": "b", "text": "two", "text_right": "step"}]
    assert join(left, right, how="left")["text_right"].to_list() == [None, "step"]
    assert join(left, right, how="anti")["rollout_id"].to_list() == ["a"]


def test_an_empty_table_has_arrows_types_and_needs_no_pandas():
    for name, spec in TABLES.items():
        assert empty(name).schema == pl.from_arrow(spec.schema.empty_table()).schema
    code = "import sys; from grpo_pipeline.tables import empty; empty('steps'); sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
