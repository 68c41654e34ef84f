"""The handed cases and the recorded correctness of real rollouts."""

import json
import time

import pytest

from grpo_pipeline.answers import check, check_many

pytestmark = pytest.mark.data
ADVERSARIAL = {"injection", "hang", "size", "chars", "hack", "thread"}


def lines(path):
    with path.open() as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def judged(shared, tmp_path_factory):
    """(case, right, seconds) for every scored case, run where an injection would leave its file."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "ac_marker").mkdir()
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for case in lines(shared / "checker" / "handed.jsonl"):
            text = "".join(part * n for part, n in case.get("pred_gen", [])) or case["pred"]
            started = time.perf_counter()
            verdict = check(case["gold"], text, case["mode"]).verdict
            if not case.get("disputed"):
                found.append((case, (verdict == "correct") is case["expected"], time.perf_counter() - started))
    assert not list((folder / "ac_marker").iterdir())
    return found


def test_core_cases(judged):
    core = [(case, right) for case, right, _ in judged if case["kind"] not in ADVERSARIAL]
    positive = [right for case, right in core if case["expected"]]
    negative = [right for case, right in core if not case["expected"]]
    assert sum(right for _, right in core) >= 0.98 * len(core)
    assert positive.count(False) <= 0.03 * len(positive)
    assert negative.count(False) <= 0.005 * len(negative)


def test_adversarial_cases_are_right_and_quick(judged):
    hostile = [row for row in judged if row[0]["kind"] in ADVERSARIAL]
    assert [case["id"] for case, right, seconds in hostile if not right or seconds > 3] == []


def test_gsm8k_rollouts_agree_with_their_record(shared):
    golds, texts, recorded = [], [], []
    for problem in lines(shared / "data" / "gsm8k" / "example_model_solutions.jsonl"):
        for name in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"):
            golds.append(problem["ground_truth"].rsplit("A: ", 1)[1].strip())
            texts.append(problem[name]["solution"])
            recorded.append(problem[name]["is_correct"])
    found = [c.verdict == "correct" for c in check_many(golds, texts)]
    assert found == recorded
    assert len(found) == 2640


def test_math_rollouts_agree_with_their_record(shared):
    golds, texts, recorded = [], [], []
    for problem in lines(shared / "data" / "math" / "qwen_math_cot_rollouts.jsonl"):
        golds += [problem["gt"]] * len(problem["code"])
        texts += problem["code"]
        recorded += [bool(score) for score in problem["score"]]
    assert [c.verdict == "correct" for c in check_many(golds, texts)] == recorded
    assert len(texts) == 480


def test_every_public_gold_answer_is_usable(shared):
    golds = [row["answer"] for row in lines(shared / "data" / "math" / "math500_test.jsonl")]
    train = json.loads((shared / "data" / "math" / "train_7500_problem_answer.json").read_text())
    golds += [row["final_answer"] for row in train]
    golds = [gold for gold in golds if gold]  # two of the train answers are empty
    found = check_many(golds, [f"${gold}$" for gold in golds], "answer")
    assert [c for c in found if c.verdict != "correct"] == []
    assert len(golds) == 7998
