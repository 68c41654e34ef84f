"""docs/exchange.md names every form, and the figures that it gives of the real file are counted elsewhere."""

import re
from pathlib import Path

from grpo_pipeline.config import PrmEvaluationConfig
from grpo_pipeline.exchange.forms import FORMS

PAGE = (Path(__file__).parents[2] / "docs" / "exchange.md").read_text(encoding="utf-8")


def test_the_tables_list_every_form():
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    tables = "".join(section for section in sections if not section.startswith("Counts\n"))
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", tables, re.MULTILINE)
    assert rows == [*FORMS, *PrmEvaluationConfig.model_fields["form"].annotation.__args__]
