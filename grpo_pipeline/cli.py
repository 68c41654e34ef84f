"""The library's commands. `flows.cli` adds the flows and is the console program.

Heavy packages are imported inside the commands, so that ``grpo-pipeline --help`` starts in a moment. Commands
whose own module is heavy are declared here and call it.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from grpo_pipeline import __version__
from grpo_pipeline.errors import ProcessDiedError, UserError
from grpo_pipeline.exchange.commands import export_command, import_command
from grpo_pipeline.inspect.commands import diff_command, gc_command, inspect_command, lineage_command, verify_command
from grpo_pipeline.interrupts import catch_interrupts
from grpo_pipeline.report.commands import report_command
from grpo_pipeline.stages.command import run_command

app = typer.Typer(
    name="grpo-pipeline",
    help="From problems to a better policy: step labels, process reward models and GRPO over Parquet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(f"grpo-pipeline {__version__}")
        raise typer.Exit


_DATA, _LABELS, _RUN = "Look at the data", "Labels and models", "Without Prefect"

app.command("inspect", rich_help_panel=_DATA)(inspect_command)
app.command("report", rich_help_panel=_DATA)(report_command)
app.command("lineage", rich_help_panel=_DATA)(lineage_command)
app.command("diff", rich_help_panel=_DATA)(diff_command)
app.command("verify", rich_help_panel=_DATA)(verify_command)
app.command("gc", rich_help_panel=_DATA)(gc_command)
app.command("run", rich_help_panel=_RUN)(run_command)
app.command("import", rich_help_panel=_DATA)(import_command)
app.command("export", rich_help_panel=_DATA)(export_command)


@app.command(rich_help_panel=_LABELS)
def check(
    file: Annotated[Path, typer.Argument(help="JSONL with the fields gold and pred, and optionally mode.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the verdicts: .jsonl or .parquet.")] = None,
) -> None:
    """Check answers against gold answers and count the verdicts."""
    from grpo_pipeline.answers.command import check_command

    check_command(file, out)


@app.command(rich_help_panel=_LABELS)
def relabel(
    artifact: Annotated[str, typer.Argument(help="Folder of an artifact with step labels.")],
    rule: Annotated[str, typer.Option(help="hard, threshold, interval, first_error, progress or consensus.")] = "hard",
    threshold: Annotated[float | None, typer.Option(help="For threshold, interval and progress.")] = None,
    after: Annotated[str, typer.Option(help="first_error, later steps: unlabelled, zero or keep.")] = "unlabelled",
    truncated: Annotated[str, typer.Option(help="Cut-off completions: not_correct or exclude.")] = "not_correct",
    judge: Annotated[
        str | None, typer.Option(help="consensus: an artifact of `judge` or of another completer.")
    ] = None,
) -> None:
    """Derive other step labels from stored counts, as a new artifact beside the old one."""
    from grpo_pipeline.labelling.commands import relabel_command

    relabel_command(artifact, rule, threshold, after, truncated, judge)


@app.command(rich_help_panel=_LABELS)
def judge(
    artifact: Annotated[str, typer.Argument(help="Folder of an artifact with solutions or their labels.")],
    model: Annotated[str, typer.Option(help="The judge: a model folder or a Hugging Face id.")],
    base_url: Annotated[
        str | None, typer.Option(help="The /v1 of an OpenAI-compatible server that serves it; else it runs here.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Without --base-url: transformers or vllm.")] = "transformers",
    votes: Annotated[int, typer.Option(min=1, help="Answers for each solution; the most frequent counts.")] = 8,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the judge's answers.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one answer.")] = 2048,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests to the server under way at once.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Decides the answers.")] = 0,
) -> None:
    """Ask a language model for the first bad step of each solution: a second opinion for rule consensus."""
    from grpo_pipeline.config import EngineConfig, ModelConfig, SamplingConfig
    from grpo_pipeline.labelling.judge_command import judge_command

    if engine not in ("transformers", "vllm"):
        raise UserError(f"--engine {engine}: use transformers or vllm, or give --base-url for a server")
    kind = "server" if base_url is not None else engine
    judge_command(
        artifact,
        ModelConfig(path=model),
        EngineConfig.model_validate({"kind": kind, "base_url": base_url, "concurrency": concurrency}),
        SamplingConfig(temperature=temperature, max_tokens=max_tokens),
        votes,
        seed,
    )


@app.command(rich_help_panel=_LABELS)
def audit(
    artifact: Annotated[str, typer.Argument(help="Folder of an artifact with step labels.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Look a labelled set over: distribution, undecided, false zeros, duplicates, overlap, oracle."""
    from grpo_pipeline.labelling.commands import audit_command

    audit_command(artifact, json_file)


@app.command("make-tiny", rich_help_panel=_LABELS)
def make_tiny(
    out: Annotated[Path, typer.Option(help="Folder to write the model into.")] = Path("data/tiny"),
    seed: Annotated[int, typer.Option(help="Decides demonstrations, initial weights and order.")] = 0,
) -> None:
    """Make the embedded model: demonstrations, tokenizer, training, measuring, model card."""
    from grpo_pipeline.models.tiny import make_tiny_command

    make_tiny_command(out, seed)


@app.command("import-model", rich_help_panel=_LABELS)
def import_model(
    source: Annotated[str, typer.Argument(help="GGUF file, model folder, Hugging Face id, or 'smollm2'.")],
    out: Annotated[Path, typer.Option(help="Folder to write; must be new or empty.")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that the source brings.")] = False,
) -> None:
    """Turn a model (GGUF or transformers) into a local folder of safetensors with its tokenizer."""
    from grpo_pipeline.models.importing import import_model_command

    import_model_command(source, out=out, dtype=dtype, trust_remote_code=trust_remote_code)


@app.command("serve-completer", rich_help_panel=_LABELS)
def serve_completer(
    model: Annotated[Path, typer.Argument(help="Model folder to serve.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8000,
    name: Annotated[list[str] | None, typer.Option(help="Further name of the model, e.g. its content id.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="Context limit; the model's if not given.")] = None,
    max_batch: Annotated[int, typer.Option(help="Sequences decoded at once.")] = 256,
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of the GPU's memory.")] = 0.9,
    tensor_parallel_size: Annotated[int, typer.Option(help="GPUs that the model is spread over.")] = 1,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Neither compile nor capture graphs: starts sooner, samples slower.")
    ] = False,
) -> None:
    """Serve a model for step-label completions with vLLM; the server ends with this command."""
    from grpo_pipeline.engines.serving import serve_completer_command

    serve_completer_command(
        model,
        host=host,
        port=port,
        names=name or [],
        dtype=dtype,
        max_model_len=max_model_len,
        max_batch=max_batch,
        gpu_memory_utilization=gpu_memory_utilization,
        tensor_parallel_size=tensor_parallel_size,
        enforce_eager=enforce_eager,
    )


def run() -> None:
    """Run the program; a user's mistake is one message and exit code 2, a process that died one and 1, Ctrl-C 130."""
    catch_interrupts()
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except ProcessDiedError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
