import json
import os
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from grpo_pipeline.errors import UserError
from grpo_pipeline.models.content import content_id
from grpo_pipeline.models.heads import output_head
from grpo_pipeline.models.loading import load_policy, load_tokenizer, save_model
from grpo_pipeline.models.reward import RewardModel, single_token

A, B = [5, 9, 7, 20, 33], [11, 12, 13]


def padded(*sequences, fill=1):
    width = max(map(len, sequences))
    return torch.tensor([[*ids, *[fill] * (width - len(ids))] for ids in sequences])


def test_head_is_small_seeded_and_independent_of_global_random_state(policy_folder):
    one = RewardModel.from_policy(policy_folder, "prm", 7)
    torch.manual_seed(123)
    two = RewardModel.from_policy(policy_folder, "prm", 7)
    other = RewardModel.from_policy(policy_folder, "prm", 8)
    assert torch.equal(one.model.score.weight, two.model.score.weight)
    assert not torch.equal(one.model.score.weight, other.model.score.weight)
    assert one.id == two.id != other.id
    assert torch.equal(one.model.score.bias, torch.zeros(1))
    logits = one.step_logits(padded(A, B), torch.tensor([0, 0, 1]), torch.tensor([1, 4, 2]))
    assert logits.abs().max() < 0.5


def test_backbone_is_the_policys(policy_folder):
    model = RewardModel.from_policy(policy_folder, "prm", 0)
    policy = load_policy(policy_folder)
    for name, weight in policy.model.state_dict().items():
        assert torch.equal(model.model.model.state_dict()[name], weight)


@pytest.mark.parametrize("kind", ["prm", "critic"])
def test_plain_transformers_reads_the_same_step_logits(policy_folder, tmp_path, kind):
    model = RewardModel.from_policy(policy_folder, kind, 0)
    saved = model.save(tmp_path / "m", parents=["p"], settings={"epochs": 2})
    assert saved == model.id == content_id(tmp_path / "m")
    # In training mode on purpose: the saved configuration must hold dropout at 0.
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path / "m").train()
    expected = plain(torch.tensor([A])).logits[0, [1, 4], 0]
    got = RewardModel.load(tmp_path / "m")
    assert (got.kind, got.id, got.settings) == (kind, saved, {"epochs": 2})
    logits = got.step_logits(padded(A, B), torch.tensor([0, 0]), torch.tensor([1, 4]))
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("kind", ["orm", "pairwise"])
def test_plain_transformers_reads_the_same_outcome_logits_although_pad_is_eos(policy_folder, tmp_path, kind):
    RewardModel.from_policy(policy_folder, kind, 0).save(tmp_path / "m", parents=[], settings={})
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    assert plain.config.pad_token_id == 1
    got = RewardModel.load(tmp_path / "m").step_logits(padded(A, B), torch.tensor([0, 1]), torch.tensor([4, 2]))
    torch.testing.assert_close(got, plain(padded(A, B)).logits[:, 0])


@pytest.mark.parametrize("fill", [0, 1, 50])
def test_padding_with_any_id_changes_nothing(policy_folder, fill):
    model = RewardModel.from_policy(policy_folder, "prm", 0)
    alone = model.step_logits(torch.tensor([B]), torch.tensor([0, 0]), torch.tensor([0, 2]))
    together = model.step_logits(padded(A, B, fill=fill), torch.tensor([1, 1]), torch.tensor([0, 2]))
    torch.testing.assert_close(together, alone)


def test_left_padding_with_mask_and_position_ids(policy_folder):
    model = RewardModel.from_policy(policy_folder, "prm", 0)
    alone = model.step_logits(torch.tensor([B]), torch.tensor([0]), torch.tensor([2]))
    left = model.step_logits(
        torch.tensor([[1, 1, *B]]),
        torch.tensor([0]),
        torch.tensor([4]),
        attention_mask=torch.tensor([[0, 0, 1, 1, 1]]),
        position_ids=torch.tensor([[0, 0, 0, 1, 2]]),
    )
    torch.testing.assert_close(left, alone)


def test_packed_equals_alone(policy_folder):
    model = RewardModel.from_policy(policy_folder, "prm", 0)
    packed = model.step_logits(
        torch.tensor([A + B]),
        torch.tensor([0, 0, 0]),
        torch.tensor([1, 4, 7]),
        position_ids=torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]),
    )
    alone_a = model.step_logits(torch.tensor([A]), torch.tensor([0, 0]), torch.tensor([1, 4]))
    alone_b = model.step_logits(torch.tensor([B]), torch.tensor([0]), torch.tensor([2]))
    torch.testing.assert_close(packed, torch.cat([alone_a, alone_b]))


def test_dropout_stays_off_when_a_trainer_asks_for_training_mode(policy_folder):
    model = RewardModel.from_policy(policy_folder, "prm", 0).train()
    assert not model.training
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_token_form_is_the_softmax_over_two_tokens(policy_folder, tmp_path):
    model = RewardModel.from_policy(policy_folder, "prm", 0, plus_minus=("+", "-"))
    plus, minus = model.plus_minus
    logits = load_policy(policy_folder)(torch.tensor([A])).logits[0, [2, 4]]
    expected = logits[:, [plus, minus]].softmax(-1)[:, 0]
    got = model.step_logits(torch.tensor([A]), torch.tensor([0, 0]), torch.tensor([2, 4])).sigmoid()
    torch.testing.assert_close(got, expected)
    model.save(tmp_path / "m", parents=[], settings={})
    again = RewardModel.load(tmp_path / "m")
    assert again.plus_minus == (plus, minus)
    torch.testing.assert_close(
        again.step_logits(torch.tensor([A]), torch.tensor([0, 0]), torch.tensor([2, 4])).sigmoid(), expected
    )


def test_two_class_token_classifier_is_the_softmax_of_class_one(policy_folder, tmp_path):
    plain = AutoModelForTokenClassification.from_pretrained(policy_folder, num_labels=2).eval()
    plain.save_pretrained(tmp_path / "trl")
    load_tokenizer(policy_folder).save_pretrained(tmp_path / "trl")
    model = RewardModel.load(tmp_path / "trl")
    assert model.kind == "prm"
    expected = plain(torch.tensor([A])).logits[0, [1, 4]].softmax(-1)[:, 1]
    got = model.step_logits(torch.tensor([A]), torch.tensor([0, 0]), torch.tensor([1, 4])).sigmoid()
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("fixture", ["policy_folder", "untied_folder"])
def test_language_model_term_reads_the_policys_log_probabilities(fixture, request, tmp_path):
    folder = request.getfixturevalue(fixture)
    model = RewardModel.from_policy(folder, "pairwise", 0, with_lm_head=True)
    policy_logprobs = load_policy(folder)(torch.tensor([A])).logits[0].log_softmax(-1)
    expected = torch.stack([policy_logprobs[1, A[2]], policy_logprobs[3, A[4]]])
    for _ in range(2):  # fresh, then saved and loaded
        states = model.model.base_model(torch.tensor([A])).last_hidden_state[0]
        logprobs = model.lm_projection()(states).log_softmax(-1)
        torch.testing.assert_close(torch.stack([logprobs[1, A[2]], logprobs[3, A[4]]]), expected)
        model.save(tmp_path / "m", parents=[], settings={})
        model = RewardModel.load(tmp_path / "m")


def test_language_model_term_without_a_head_is_refused(untied_folder):
    model = RewardModel.from_policy(untied_folder, "pairwise", 0)
    with pytest.raises(ValueError, match="with_lm_head"):
        model.lm_projection()


def test_policies_and_reward_models_are_not_mistaken_for_each_other(policy_folder, tmp_path):
    RewardModel.from_policy(policy_folder, "prm", 0).save(tmp_path / "prm", parents=[], settings={})
    with pytest.raises(UserError, match="a prm model, where a policy"):
        load_policy(tmp_path / "prm")
    (tmp_path / "prm" / "grpo_pipeline.json").unlink()
    with pytest.raises(UserError, match="LlamaForTokenClassification"):
        load_policy(tmp_path / "prm")
    with pytest.raises(UserError, match="not a reward model"):
        RewardModel.load(policy_folder)
    policy = load_policy(policy_folder)
    save_model(policy, load_tokenizer(policy_folder), tmp_path / "p", kind="policy", parents=[], settings={})
    with pytest.raises(UserError, match="a policy, where a reward model"):
        RewardModel.load(tmp_path / "p")


def test_three_labels_are_refused(policy_folder, tmp_path):
    AutoModelForTokenClassification.from_pretrained(policy_folder, num_labels=3).save_pretrained(tmp_path)
    load_tokenizer(policy_folder).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has 3"):
        RewardModel.load(tmp_path)


def test_a_separator_must_be_one_token(policy_folder):
    tokenizer = load_tokenizer(policy_folder)
    assert single_token(tokenizer, "ки") == 2
    with pytest.raises(UserError, match="'<sep>' must be one token"):
        single_token(tokenizer, "<sep>")
    with pytest.raises(UserError, match="'ж' must be one token"):
        single_token(tokenizer, "ж")
    with pytest.raises(UserError, match="same id"):
        RewardModel.from_policy(policy_folder, "prm", 0, plus_minus=("+", "+"))


def test_scaled_logits_are_refused_rather_than_misread():
    with pytest.raises(UserError, match="final_logit_softcapping"):
        output_head(SimpleNamespace(config=SimpleNamespace(final_logit_softcapping=30.0)))


def test_saved_description_is_json(policy_folder, tmp_path):
    RewardModel.from_policy(policy_folder, "prm", 0).save(tmp_path, parents=["a"], settings={"lr": 2e-5})
    data = json.loads((tmp_path / "grpo_pipeline.json").read_text())
    assert data == {"kind": "prm", "parents": ["a"], "settings": {"lr": 2e-5}}


def test_a_saved_model_may_be_read_as_the_umask_says(untied_folder, tmp_path):
    before = os.umask(0o027)
    try:
        model = RewardModel.from_policy(untied_folder, "pairwise", 0, with_lm_head=True)
        model.save(tmp_path / "m", parents=[], settings={})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "m").iterdir()}
    assert modes.keys() >= {"model.safetensors", "lm_head.safetensors"}
    assert set(modes.values()) == {0o640}
