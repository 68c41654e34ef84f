"""`prefect.yaml` and `grpo-pipeline serve` offer the same deployments; the form that the UI draws is complete."""

from pathlib import Path

import pytest
import yaml

from flows.deployments import DEPLOYMENTS, WORK_POOL

ROOT = Path(__file__).parents[2]
FILE = yaml.safe_load((ROOT / "prefect.yaml").read_text())


def test_every_flow_is_deployed():
    flows = {path.stem for path in (ROOT / "flows").glob("*.py") if "\n@flow(" in path.read_text()}
    assert {one.flow.replace("-", "_") for one in DEPLOYMENTS} == flows - {"rl_round"}  # a part of the loop


@pytest.mark.parametrize("one", DEPLOYMENTS, ids=lambda one: one.flow)
def test_the_file_says_what_is_served(one):
    (written,) = [entry for entry in FILE["deployments"] if entry["entrypoint"] == one.entrypoint]
    assert written["name"] == one.name
    assert written["description"] == one.description
    assert written["work_pool"]["name"] == WORK_POOL
    assert written["concurrency_limit"] == {"limit": 1, "collision_strategy": one.collision.value}
    schedules = [(entry["cron"], entry["active"]) for entry in written.get("schedules", [])]
    assert schedules == ([(one.cron, False)] if one.cron else [])
    served = one.for_serving()
    assert served.entrypoint.endswith(one.entrypoint)
    assert [(entry.schedule.cron, entry.active) for entry in served.schedules or []] == schedules
    assert served.concurrency_limit == 1
    assert served.concurrency_options.collision_strategy == one.collision
    assert served.parameters.get("config", {}).get("name") == written["parameters"]["config"].get("name")


def described(node, definitions, path=""):
    """Every property of the form with its description."""
    for name, item in node.get("properties", {}).items():
        yield f"{path}{name}", item.get("description")
        for option in (item, *item.get("allOf", []), *item.get("anyOf", [])):
            if "$ref" in option:
                inner = definitions[option["$ref"].rsplit("/", 1)[-1]]
                yield from described(inner, definitions, f"{path}{name}.")


def test_the_form_describes_every_parameter():
    schema = DEPLOYMENTS[0].for_serving()._parameter_openapi_schema
    fields = dict(described(schema.properties["config"] | schema.definitions["RunConfig"], schema.definitions))
    assert fields["policy.grpo.beta"].startswith("Weight of the KL")
    sections = {name.rsplit(".", 1)[0] for name in fields if "." in name}
    assert [name for name, text in fields.items() if not text and name not in sections] == []
