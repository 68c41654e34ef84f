"""Open an engine over a model folder; say what is missing where it cannot be opened."""

from pathlib import Path

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines.protocol import Engine


def open_engine(folder: Path, model: ModelConfig, engine: EngineConfig, model_id: str) -> Engine:
    """The engine that the configuration names, over the model in `folder`.

    Use it as a context manager, or call `close`, so that its memory and processes are gone after the stage.

    Args:
        folder: Model folder (safetensors and tokenizer). For the server engine: what the server should serve.
        model: Type, device and trust of the model.
        engine: Which engine, and its limits.
        model_id: Content id of the weights.

    Raises:
        UserError: Where the folder lacks something, the device is absent, or the engine is not installed.
    """
    if engine.kind == "transformers":
        from grpo_pipeline.engines.transformers import TransformersEngine

        return TransformersEngine.load(folder, model, engine, model_id)
    if engine.kind == "vllm":
        from grpo_pipeline.engines.vllm import VllmEngine

        return VllmEngine.load(folder, model, engine, model_id)
    from grpo_pipeline.engines.server import ServerEngine

    return ServerEngine.connect(folder, model, engine, model_id)
