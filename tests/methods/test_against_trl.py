"""Loss and gradient against TRL's own trainers: same tiny model, same batch, float32, to 1e-5.

Needs the test-only extra `trl`; it is skipped where TRL is not installed. TRL pads (prompts left, completions
right) and runs the real `GRPOTrainer` and `DPOTrainer` losses; ours runs each row by itself, without padding.
"""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_pipeline.config import DpoConfig, GrpoConfig
from grpo_pipeline.methods.base import TokenBatch
from grpo_pipeline.methods.dpo import Dpo
from grpo_pipeline.methods.grpo import Grpo
from grpo_pipeline.methods.metrics import add_metrics, metric_means
from grpo_pipeline.methods.weights import mask_truncated, token_weights, trained_lengths
from tests.methods.tiny_policy import micro_batches

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.slow

VOCABULARY, PAD, EOS, MAX_TOKENS, TEMPERATURE = 24, 0, 1, 8, 0.7
PROMPTS = [[5, 6], [5, 6], [7, 8, 9, 10], [7, 8, 9, 10]]
COMPLETIONS = [[11, 12, EOS], [13, EOS], [4, 3, 2, 11, 12, 5, EOS], [20]]
LENGTHS = [len(completion) for completion in COMPLETIONS]
ROW = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))
ADVANTAGES = torch.tensor([0.7, -0.7, 1.1, -1.3])


def make_model(seed):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=EOS,
        initializer_range=0.5,  # far from uniform, so that policy and reference differ visibly
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


def make_reference():
    """A model near make_model(0), as a reference is near its policy."""
    model = make_model(0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {"<pad>": PAD, "<eos>": EOS, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="w2"))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


def logprobs(model, prompts, completions, temperature=1.0):
    """Flat log-probabilities of the completions' tokens, one row at a time."""
    rows = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt + completion])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
        rows.append(torch.log_softmax(logits.float(), -1)[torch.arange(len(completion)), completion])
    return torch.cat(rows)


def padded(rows, value, side="right"):
    longest = max(map(len, rows))
    pad = [[value] * (longest - len(row)) for row in rows]
    return torch.tensor([p + r if side == "left" else r + p for r, p in zip(map(list, rows), pad, strict=True)])


def by_row(flat):
    return padded([row.tolist() for row in flat.detach().split(LENGTHS)], 0.0)


def gradients(loss, model):
    return {
        name: gradient
        for (name, parameter), gradient in zip(
            model.named_parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        )
    }


def assert_same(ours, theirs, model, their_model):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    mine, other = gradients(ours, model), gradients(theirs, their_model)
    assert max(gradient.abs().max() for gradient in other.values()) > 1e-2
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """With beta > 0 TRL loads its own reference from where the policy came from."""
    folder = tmp_path_factory.mktemp("model")
    make_model(0).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def make_trainer(tmp_path, tokenizer, model_folder):
    def make(*, unbiased_kl=False, **settings):
        from datasets import Dataset

        arguments = trl.GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            report_to="none",
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=MAX_TOKENS,
            temperature=TEMPERATURE,
            use_bias_correction_kl=unbiased_kl,
            **settings,
        )
        trainer = trl.GRPOTrainer(
            model=LlamaForCausalLM.from_pretrained(model_folder, attn_implementation="eager"),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["w5 w6"] * 4}),
            processing_class=tokenizer,
        )
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        return trainer

    return make


def trl_inputs(advantages, reference, old=None, rows=slice(None)):
    inputs = {
        "prompt_ids": padded(PROMPTS, PAD, "left")[rows],
        "prompt_mask": padded([[1] * len(p) for p in PROMPTS], 0, "left")[rows],
        "completion_ids": padded(COMPLETIONS, PAD)[rows],
        "completion_mask": padded([[1] * length for length in LENGTHS], 0)[rows],
        "advantages": advantages[rows],
        "num_items_in_batch": torch.tensor(sum(LENGTHS)),
        "ref_per_token_logps": by_row(reference)[rows],
    }
    if old is not None:
        inputs["old_per_token_logps"] = by_row(old)[rows]
    return inputs


def our_batch(model, method, advantages, reference, old=None):
    weights = token_weights(
        torch.tensor(LENGTHS), ROW, torch.ones_like(ROW, dtype=torch.bool), method.normalisation, max_tokens=MAX_TOKENS
    )
    return TokenBatch(
        logprobs=logprobs(model, PROMPTS, COMPLETIONS, TEMPERATURE),
        weights=weights,
        row=ROW,
        advantages=advantages,
        old_logprobs=old,
        ref_logprobs=reference,
    )


@pytest.fixture(scope="module")
def reference():
    with torch.no_grad():
        return logprobs(make_reference(), PROMPTS, COMPLETIONS, TEMPERATURE)


LOSS_TYPES = ["grpo", "bnpo", "dapo", "dr_grpo"]


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_grpo_at_mu_1(make_trainer, reference, loss_type, beta):
    trainer, model = make_trainer(loss_type=loss_type, beta=beta), make_model(0)
    method = Grpo(GrpoConfig(loss_type=loss_type, beta=beta))
    ours = method.loss(our_batch(model, method, ADVANTAGES[ROW], reference))
    theirs = trainer._compute_loss(trainer.model, trl_inputs(ADVANTAGES, reference))
    assert_same(ours.loss, theirs, model, trainer.model)
    for name, value in metric_means(ours.metrics).items():
        assert trainer._metrics["train"][name] == pytest.approx([value], abs=1e-5), name


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_process_supervision_at_mu_1(make_trainer, reference, loss_type):
    # TRL takes (B, T) advantages from subclasses.
    trainer, model = make_trainer(loss_type=loss_type, beta=0.04), make_model(0)
    method = Grpo(GrpoConfig(loss_type=loss_type, beta=0.04))
    advantages = torch.linspace(-1.5, 2, len(ROW))
    ours = method.loss(our_batch(model, method, advantages, reference)).loss
    theirs = trainer._compute_loss(trainer.model, trl_inputs(by_row(advantages), reference))
    assert_same(ours, theirs, model, trainer.model)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_masking_of_the_truncated_rollout(make_trainer, reference, loss_type):
    # Row 3 ends without EOS. TRL's mask_truncated_completions zeroes its completion mask and counts what is left.
    trainer, model = make_trainer(loss_type=loss_type, beta=0.04), make_model(0)
    method = Grpo(GrpoConfig(loss_type=loss_type, beta=0.04, mask_truncated=True))
    inputs = trl_inputs(ADVANTAGES, reference)
    inputs["completion_mask"][3] = 0
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    mask = mask_truncated(torch.ones_like(ROW, dtype=torch.bool), ROW, torch.tensor([False, False, False, True]))
    weights = token_weights(trained_lengths(ROW, mask, 4), ROW, mask, method.normalisation, max_tokens=MAX_TOKENS)
    batch = replace(our_batch(model, method, ADVANTAGES[ROW], reference), weights=weights)
    theirs = trainer._compute_loss(trainer.model, inputs)
    assert_same(method.loss(batch).loss, theirs, model, trainer.model)


def test_the_importance_correction_weighs_what_trl_weighs(make_trainer, reference):
    trainer, model = make_trainer(loss_type="grpo", beta=0.04), make_model(0)
    trainer.use_vllm = True  # makes the loss read importance_sampling_ratio, nothing else
    method = Grpo(GrpoConfig(beta=0.04, importance_correction="truncate", importance_cap=1.2))
    batch = our_batch(model, method, ADVANTAGES[ROW], reference)
    sampler = batch.logprobs.detach() + 0.4 * torch.sin(torch.arange(len(ROW)).float())
    inputs = trl_inputs(ADVANTAGES, reference)
    inputs["importance_sampling_ratio"] = by_row(torch.exp(batch.logprobs.detach() - sampler).clamp(max=1.2))
    theirs = trainer._compute_loss(trainer.model, inputs)
    assert_same(method.loss(replace(batch, sampler_logprobs=sampler)).loss, theirs, model, trainer.model)


def test_the_unbiased_kl_is_trls_default(make_trainer, reference):
    assert trl.GRPOConfig.use_bias_correction_kl
    trainer, model = make_trainer(loss_type="grpo", beta=0.2, unbiased_kl=True), make_model(0)
    method = Grpo(GrpoConfig(beta=0.2, unbiased_kl=True))
    ours = method.loss(our_batch(model, method, ADVANTAGES[ROW], reference)).loss
    theirs = trainer._compute_loss(trainer.model, trl_inputs(ADVANTAGES, reference))
    assert_same(ours, theirs, model, trainer.model)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_grpo_away_from_the_start_with_clip_higher(make_trainer, reference, level):
    trainer = make_trainer(loss_type="grpo", beta=0.04, importance_sampling_level=level, epsilon=0.1, epsilon_high=0.15)
    model = make_model(0)
    method = Grpo(GrpoConfig(beta=0.04, ratio=level, epsilon=0.1, epsilon_high=0.15))
    with torch.no_grad():
        current = logprobs(model, PROMPTS, COMPLETIONS, TEMPERATURE)
    old = current + 0.3 * torch.sin(torch.arange(len(ROW)).float())
    ours = method.loss(our_batch(model, method, ADVANTAGES[ROW], reference, old))
    theirs = trainer._compute_loss(trainer.model, trl_inputs(ADVANTAGES, reference, old))
    assert_same(ours.loss, theirs, model, trainer.model)
    if level == "token":  # TRL counts sequences, not tokens, under the sequence ratio
        metrics = metric_means(ours.metrics)
        assert metrics["clip_ratio/region_mean"] > 0
        for name, value in metrics.items():
            assert trainer._metrics["train"][name] == pytest.approx([value], abs=1e-5), name


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_gradient_accumulation_over_two_unequal_micro_batches(make_trainer, reference, loss_type):
    trainer = make_trainer(loss_type=loss_type, beta=0.04, gradient_accumulation_steps=2)
    trainer.current_gradient_accumulation_steps = 2
    model = make_model(0)
    method = Grpo(GrpoConfig(loss_type=loss_type, beta=0.04))
    parts = [method.loss(part) for part in micro_batches(our_batch(model, method, ADVANTAGES[ROW], reference), [2, 2])]
    theirs = sum(
        trainer._compute_loss(trainer.model, trl_inputs(ADVANTAGES, reference, rows=rows))
        for rows in (slice(0, 2), slice(2, 4))
    )
    assert_same(sum(part.loss for part in parts), theirs, model, trainer.model)
    assert metric_means(add_metrics(part.metrics for part in parts))["kl"] > 0


@pytest.mark.parametrize(("loss_type", "length_normalised"), [("sigmoid", False), ("sigmoid_norm", True)])
def test_dpo(tmp_path, tokenizer, loss_type, length_normalised):
    from datasets import Dataset

    model, reference_model = make_model(0), make_reference()
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to="none",
        beta=0.3,
        loss_type=[loss_type],
    )
    trainer = trl.DPOTrainer(
        model=make_model(0),
        ref_model=make_reference(),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["w5"] * 2, "chosen": [" w6"] * 2, "rejected": [" w7"] * 2}),
        processing_class=tokenizer,
    )
    trainer.model.train()
    # Ours holds the pairs (chosen, rejected) next to each other; TRL all chosen before all rejected.
    order = [0, 2, 1, 3]
    sequences = [PROMPTS[i] + COMPLETIONS[i] for i in order]
    inputs = {
        "input_ids": padded(sequences, PAD),
        "attention_mask": padded([[1] * len(s) for s in sequences], 0),
        "completion_mask": padded([[0] * len(PROMPTS[i]) + [1] * LENGTHS[i] for i in order], 0),
    }
    theirs = trainer._compute_loss(trainer.model, inputs, return_outputs=False)
    method = Dpo(DpoConfig(beta=0.3, length_normalised=length_normalised))
    with torch.no_grad():
        reference_logprobs = logprobs(reference_model, PROMPTS, COMPLETIONS)
    mask = torch.ones_like(ROW, dtype=torch.bool)
    ours = method.loss(
        TokenBatch(
            logprobs=logprobs(model, PROMPTS, COMPLETIONS),
            weights=token_weights(torch.tensor(LENGTHS), ROW, mask, method.normalisation),
            row=ROW,
            advantages=torch.zeros(len(ROW)),
            ref_logprobs=reference_logprobs,
        )
    )
    assert_same(ours.loss, theirs, model, trainer.model)
    if not length_normalised:
        for name, value in metric_means(ours.metrics).items():
            assert trainer._metrics["train"][name] == pytest.approx([value], abs=1e-4), name
