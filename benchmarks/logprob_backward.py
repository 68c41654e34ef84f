"""Log-probabilities, loss and backward of a GRPO step: packed with shared prompts against a plain padded loop.

    python benchmarks/logprob_backward.py [--quick] [--json FILE] [--model FOLDER] [--dtype float32]

The plain loop is what a simple trainer does: left-padded rows in micro-batches of `--rows`, in the order they
come, full logits and log_softmax. Ours runs the rows through `grpo_pipeline.training`. Both do a forward pass
of the reference and a forward and backward pass of the policy on the same rows; runs are interleaved. The
bound is the arithmetic of the packed tokens at the matmul rate measured in the same process.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from grpo_pipeline.config import TrainingConfig
from grpo_pipeline.models.heads import output_head
from grpo_pipeline.training.batching import response_row
from grpo_pipeline.training.logprobs import token_logprobs
from grpo_pipeline.training.loop import read_all
from grpo_pipeline.training.runner import Runner
from grpo_pipeline.training.token_rows import TokenRows


def tiny_model():
    """The embedded model's size, with random weights."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def make_rows(groups, per_group, prompt, shortest, longest, vocab, seed=0):
    """Groups that share a prompt; response lengths spread evenly in the logarithm."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(groups):
        shared = rng.integers(3, vocab, prompt)
        lengths = np.exp(rng.uniform(np.log(shortest), np.log(longest + 1), per_group)).astype(int)
        rows += [response_row(shared, rng.integers(3, vocab, n)) for n in lengths]
    return rows


def padded_step(policy, reference, rows, rows_per_batch):
    """One step of the plain loop."""
    for start in range(0, len(rows), rows_per_batch):
        part = rows[start : start + rows_per_batch]
        longest = max(len(row.tokens) for row in part)
        ids = torch.zeros(len(part), longest, dtype=torch.long)
        mask = torch.zeros(len(part), longest, dtype=torch.long)
        trained = torch.zeros(len(part), longest - 1, dtype=torch.bool)
        for r, row in enumerate(part):
            ids[r, longest - len(row.tokens) :] = torch.from_numpy(row.tokens)
            mask[r, longest - len(row.tokens) :] = 1
            trained[r, longest - len(row.read) - 1 :] = True
        positions = (mask.cumsum(1) - 1).clamp(min=0)

        def logprobs(model, ids=ids, mask=mask, positions=positions):
            logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
            return torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None])[..., 0]

        with torch.no_grad():
            ref = logprobs(reference)
        (logprobs(policy) - ref)[trained].sum().backward()


def packed_step(policy, reference, rows, budget, *, fused=True):
    """One step of ours."""
    settings = TrainingConfig(tokens_per_microbatch=budget, fused_layers=fused)
    data = TokenRows(rows, torch.device("cpu"))
    heads = output_head(policy), output_head(reference)
    ref_runner, runner = Runner([reference], 0, settings), Runner([policy], 0, settings)

    def read(batch):
        return token_logprobs(ref_runner.hidden(batch), heads[1], data.take(batch.rows)[0], 1.0, with_entropy=False)[0]

    data.columns["ref"] = read_all(ref_runner, rows, read)
    with runner.running(training=True):
        for chosen in runner.plan(rows):
            batch = runner.collate(rows, chosen)
            targets, columns = data.take(batch.rows)
            logprobs, _ = token_logprobs(runner.hidden(batch), heads[0], targets, 1.0)
            (logprobs - columns["ref"]).sum().backward()


def matmul_rate(dtype):
    """FLOP/s of a square product, the best of several."""
    a = torch.randn(1024, 1024).to(dtype)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - started)
    return 2 * 1024**3 / min(times)


def bound_seconds(model, rows, rate):
    """Time of the products alone: 2 FLOP a weight and token forward, 4 backward, one more forward for the reference."""
    prompts = {row.prompt_key: row.n_prompt for row in rows}
    tokens = sum(prompts.values()) + sum(len(row.tokens) - row.n_prompt for row in rows)
    read = sum(len(row.read) for row in rows)
    head = model.get_output_embeddings().weight.numel()
    body = sum(p.numel() for p in model.model.layers.parameters())
    return 8 * (body * tokens + head * read) / rate


def measure(name, model_of, rows, rows_per_batch, budget, repeats, dtype):
    policy, reference = model_of(), model_of().requires_grad_(False)
    ours, plain = [], []
    for repeat in range(repeats + 1):
        for times, step, size in ((plain, padded_step, rows_per_batch), (ours, packed_step, budget)):
            policy.zero_grad()
            started = time.perf_counter()
            step(policy, reference, rows, size)
            if repeat:  # the first round warms up
                times.append(time.perf_counter() - started)
    rate = matmul_rate(dtype)
    result = {
        "padded_seconds": statistics.median(plain),
        "packed_seconds": statistics.median(ours),
        "padded_spread": max(plain) - min(plain),
        "packed_spread": max(ours) - min(ours),
        "ratio": statistics.median(p / o for p, o in zip(plain, ours, strict=True)),
        "bound_share": bound_seconds(policy, rows, rate) / statistics.median(ours),
        "matmul_gflops": rate / 1e9,
        "response_tokens": sum(len(row.read) for row in rows),
    }
    print(f"{name:24s}" + "".join(f"  {key} {value:.3f}" for key, value in result.items()))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, the widest spread only")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--model", type=Path, help="a model folder instead of the embedded size")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--budget", type=int, default=4096, help="tokens of a micro-batch (ours)")
    parser.add_argument("--rows", type=int, default=64, help="rows of a micro-batch (plain)")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)

    def model_of():
        if options.model is None:
            return tiny_model().to(dtype)
        return AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, use_safetensors=True).eval()

    vocab = model_of().config.vocab_size
    groups = 32 if options.model is None else 4  # a model from a folder is taken to be a large one
    cases = {
        "equal 1:1": (groups, 8, 40, 30, 30),
        "spread 1:3": (groups, 8, 40, 15, 45),
        "spread 1:8": (groups, 8, 40, 10, 80),
    }
    if options.quick:
        cases = {"spread 1:8": cases["spread 1:8"]}
    results = {
        name: measure(
            name, model_of, make_rows(*case, vocab), options.rows, options.budget, 3 if options.quick else 5, dtype
        )
        for name, case in cases.items()
    }
    results |= {"machine": describe_machine()}
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
