import re

import pyarrow as pa
import pytest

from grpo_pipeline.schemas import TABLES

ALLOWED = {pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.float32(), pa.float64()}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_fully_described(name):
    table = TABLES[name]
    assert table.name == name
    assert table.description.endswith(".")
    assert set(table.key) <= set(table.schema.names)
    assert len(set(table.schema.names)) == len(table.schema.names)
    descriptions = table.describe()
    assert list(descriptions) == table.schema.names
    assert all(len(text) > 8 for text in descriptions.values())
    assert all(re.fullmatch("[a-z][a-z0-9_]*", column) for column in table.schema.names)


@pytest.mark.parametrize("name", TABLES)
def test_types_are_narrow_and_open_everywhere(name):
    for field in TABLES[name].schema:
        kind = field.type
        if pa.types.is_list(kind):
            # `datasets` and Parquet call a list's element so; another name would not compare equal when read.
            assert kind.value_field.name == "element"
            kind = kind.value_type
            # What others wrote is kept as exactly as it was read.
            assert kind in {pa.int32(), pa.float32()} or (name == "solutions" and kind in {pa.string(), pa.float64()})
        assert kind in ALLOWED


def test_keys_are_never_null():
    assert not [
        (table.name, column) for table in TABLES.values() for column in table.key if table.schema.field(column).nullable
    ]


def test_one_column_has_one_type_in_every_table():
    kinds = {}
    for table in TABLES.values():
        for field in table.schema:
            kinds.setdefault(field.name, {}).setdefault(str(field.type), []).append(table.name)
    # A step's label is a number in step_labels, and the list of a solution's labels in prm_dataset.
    several = {column for column, types in kinds.items() if len(types) > 1}
    assert several <= {"soft", "hard"}


def test_only_labels_may_have_null_elements():
    assert [
        (table.name, field.name)
        for table in TABLES.values()
        for field in table.schema
        if pa.types.is_list(field.type) and field.type.value_field.nullable
    ] == [("prm_dataset", "soft"), ("prm_dataset", "hard"), ("solutions", "labels")]
