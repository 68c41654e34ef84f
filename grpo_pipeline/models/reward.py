"""Reward models: a language model's backbone and a head read at chosen tokens.

Every form gives one logit a judged token; p(good) = sigmoid(logit):

- a scalar head (own PRMs, ORMs, pairwise models, critics): the head's one output;
- a two-class head (TRL's token classifiers, Qwen2.5-Math-PRM): logit of class 1 minus that of class 0;
- two tokens of the vocabulary (Math-Shepherd's + and -): logit(+) - logit(-), so that the sigmoid is
  p(+) / (p(+) + p(-)).

Saved PRMs and critics load with transformers' AutoModelForTokenClassification, ORMs and pairwise models with
AutoModelForSequenceClassification, the token form with AutoModelForCausalLM; none of them needs this project.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_pipeline.errors import UserError
from grpo_pipeline.models.content import content_id
from grpo_pipeline.models.heads import output_head
from grpo_pipeline.models.loading import (
    ModelKind,
    load_config,
    load_policy,
    load_pretrained,
    load_tokenizer,
    read_info,
    save_model,
)
from grpo_pipeline.models.sequences import eos_ids
from grpo_pipeline.seeds import derive_id

_AUTO_CLASS: dict[str, Any] = {
    "prm": AutoModelForTokenClassification,
    "critic": AutoModelForTokenClassification,
    "orm": AutoModelForSequenceClassification,
    "pairwise": AutoModelForSequenceClassification,
}
_LM_HEAD_FILE = "lm_head.safetensors"


class RewardModel(nn.Module):
    """A reward model in evaluation mode: dropout is off, in training too.

    Attributes:
        model: The transformers model with backbone and head.
        tokenizer: Its tokenizer.
        kind: prm, orm, pairwise or critic.
        id: Content id of the weights; whoever updates them appends ``@step``.
        plus_minus: For the token form the ids of the good and the bad token, else None.
        tag: Id of the token put after every step, where it is judged; None judges the step's own last token.
        settings: What `grpo_pipeline.json` said when it was loaded.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        kind: ModelKind,
        model_id: str,
        *,
        plus_minus: tuple[int, int] | None = None,
        tag: int | None = None,
        lm_head: nn.Linear | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.kind = kind
        self.id = model_id
        self.plus_minus = plus_minus
        self.tag = tag
        self.lm_head = lm_head
        self.settings = dict(settings or {})
        head = output_head(model) if plus_minus else _head_of(model)
        outputs = head.weight.shape[0] if isinstance(head, nn.Linear) else model.config.num_labels
        self._difference = plus_minus or ((1, 0) if outputs == 2 else None)
        if self._difference is None and outputs != 1:
            raise UserError(f"a reward model has one or two labels, this one has {outputs}")
        # In a tuple, so that the head is not registered a second time beside self.model.
        self._head = (head,)
        self.eval()

    @classmethod
    def from_policy(
        cls,
        folder: Path,
        kind: ModelKind,
        seed: int,
        *,
        plus_minus: tuple[str, str] | None = None,
        tag: str | None = None,
        with_lm_head: bool = False,
        dtype: str = "auto",
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> Self:
        """A new reward model on the backbone of any causal language model.

        The head starts small and seeded (std 0.1 / sqrt(hidden size), zero bias), so that every p is near 0.5.

        Args:
            folder: The language model.
            kind: prm, orm, pairwise or critic.
            seed: Seed of the head's weights.
            plus_minus: For a PRM of the token form: the good and the bad token; there is then no new head.
            tag: For the token form: the token after every step where it is judged; None is the step's own last.
            with_lm_head: Keep the language-model head, for the LM term of a pairwise model.
            dtype: As for `load_policy`.
            device: As for `load_policy`.
            trust_remote_code: As for `load_policy`.

        Raises:
            UserError: The folder is not usable, or a token of `plus_minus` is not one token.
        """
        tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
        source = content_id(folder)
        if plus_minus is not None:
            policy = load_policy(folder, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
            return cls(
                policy,
                tokenizer,
                kind,
                f"{source}+{kind}",
                plus_minus=token_ids_of(tokenizer, plus_minus),
                tag=None if tag is None else single_token(tokenizer, tag),
            )
        config = load_config(folder, trust_remote_code=trust_remote_code)
        config.num_labels = 1
        config.classifier_dropout = 0.0
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        model, missing = load_pretrained(
            _AUTO_CLASS[kind], folder, config=config, dtype=dtype, device=device, trust_remote_code=trust_remote_code
        )
        head = _head_of(model)
        fresh = {name for name, parameter in model.named_parameters() if any(parameter is p for p in head.parameters())}
        if absent := sorted(set(missing) - fresh):
            raise UserError(f"{folder}: not a complete model; the backbone lacks {', '.join(absent[:5])}")
        _initialise(head, seed)
        lm_head = None
        if with_lm_head and not config.tie_word_embeddings:
            policy = load_policy(folder, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
            lm_head = output_head(policy)
        return cls(model, tokenizer, kind, f"{source}+{kind}{derive_id(seed)[:4]}", lm_head=lm_head)

    @classmethod
    def load(cls, folder: Path, *, dtype: str = "auto", device: str = "auto", trust_remote_code: bool = False) -> Self:
        """Load a saved reward model, own or any transformers token or sequence classifier with 1 or 2 labels.

        Raises:
            UserError: The folder is not usable or not a reward model.
        """
        tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
        config = load_config(folder, trust_remote_code=trust_remote_code)
        info = read_info(folder)
        kind = info.kind if info is not None else _kind_from_architecture(folder, config.architectures or [])
        settings = info.settings if info is not None else {}
        if kind == "policy":
            raise UserError(f"{folder}: a policy, where a reward model is needed; train one on it first")
        plus_minus = settings.get("plus_minus")
        auto_class = AutoModelForCausalLM if plus_minus else _AUTO_CLASS[kind]
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        config.classifier_dropout = 0.0
        model, missing = load_pretrained(
            auto_class, folder, config=config, dtype=dtype, device=device, trust_remote_code=trust_remote_code
        )
        if missing:
            raise UserError(f"{folder}: not a complete {kind} model; it lacks {', '.join(missing[:5])}")
        return cls(
            model,
            tokenizer,
            kind,
            content_id(folder),
            plus_minus=tuple(plus_minus) if plus_minus else None,
            tag=settings.get("step_tag"),
            lm_head=_load_lm_head(folder, model),
            settings=settings,
        )

    def save(
        self, folder: Path, *, parents: Sequence[str], settings: Mapping[str, Any], card: str | None = None
    ) -> str:
        """Write the model so that plain transformers loads it; sets and returns `id`.

        Args:
            folder: Where to.
            parents: Content ids and fingerprints of what it was made from.
            settings: How it was trained; what is needed to read the model again is added.
            card: Text of README.md; None writes a short one.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.lm_head is not None:
            save_file({"weight": self.lm_head.weight.detach().cpu().contiguous()}, folder / _LM_HEAD_FILE)
        kept = dict(settings)
        if self.plus_minus:
            kept |= {"plus_minus": list(self.plus_minus), "step_tag": self.tag}
        self.id = save_model(
            self.model, self.tokenizer, folder, kind=self.kind, parents=parents, settings=kept, card=card
        )
        self.settings = kept
        return self.id

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return cast(torch.device, self.model.device)

    @property
    def max_length(self) -> int | None:
        """Tokens that fit the model's context; None where its configuration names no limit."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return int(limit) if limit else None

    @property
    def eos_token_ids(self) -> set[int]:
        """Every EOS id of tokenizer and configuration."""
        return eos_ids(cast("int | None", self.tokenizer.eos_token_id), self.model.config.eos_token_id)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever a training loop asks for: no dropout in reward models."""
        return super().train(mode=False)

    def step_logits(
        self,
        input_ids: Tensor,
        rows: Tensor,
        positions: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """(S,) float32 logits at the judged tokens of a padded or packed batch.

        Padded: sequences flush left, whatever id fills the rest; causal attention keeps it out of sight, so
        no attention_mask is needed. Packed: B = 1 and position_ids that start again at 0 for each sequence;
        transformers then keeps the sequences apart.

        Args:
            input_ids: (B, T) token ids.
            rows: (S,) batch row of each judged token.
            positions: (S,) its index in the row.
            attention_mask: (B, T), needed only for sequences that are not flush left.
            position_ids: (B, T), for packed batches.
        """
        hidden = self.model.base_model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        ).last_hidden_state  # (B, T, H)
        return self.head_logits(hidden[rows, positions])

    @property
    def head(self) -> nn.Module:
        """The head that is read; the language-model head in the token form."""
        return self._head[0]

    def head_logits(self, states: Tensor) -> Tensor:
        """(S,) float32 logits of (S, H) last hidden states at the judged tokens."""
        head = self._head[0]
        if self.plus_minus and isinstance(head, nn.Linear):
            # Two rows of the vocabulary's head: all of its logits would be S x V numbers.
            rows = torch.tensor(self.plus_minus, device=states.device)
            bias = None if head.bias is None else head.bias[rows]
            pair = nn.functional.linear(states, head.weight[rows], bias)  # (S, 2): good, bad
            pair = pair.to(torch.promote_types(pair.dtype, torch.float32))
            return pair[:, 0] - pair[:, 1]
        outputs = head(states)  # (S, C)
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        if self._difference is None:
            return cast(Tensor, outputs[:, 0])
        good, bad = self._difference
        return cast(Tensor, outputs[:, good] - outputs[:, bad])

    def lm_projection(self) -> nn.Linear:
        """The projection to vocabulary logits, for the LM term of a pairwise model.

        Raises:
            ValueError: The model was made without one (with_lm_head).
        """
        if self.lm_head is not None:
            return self.lm_head
        if not self.model.config.tie_word_embeddings:
            raise ValueError("this reward model has no language-model head: make it with with_lm_head=True")
        weight = cast(nn.Embedding, self.model.get_input_embeddings()).weight
        projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        projection.weight = weight
        return projection


def token_ids_of(tokenizer: PreTrainedTokenizerBase, tokens: tuple[str, str]) -> tuple[int, int]:
    """Ids of two strings that must each be one token (the token that ends " +" counts for "+").

    Raises:
        UserError: One of them is no single token, or both are the same.
    """
    good, bad = (single_token(tokenizer, token) for token in tokens)
    if good == bad:
        raise UserError(f"the good token {tokens[0]!r} and the bad token {tokens[1]!r} have the same id {good}")
    return good, bad


def single_token(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """The id of a string that is exactly one token for this tokenizer.

    Raises:
        UserError: It is several tokens, or unknown.
    """
    ids = tokenizer.encode(token, add_special_tokens=False)
    # SentencePiece puts a word-start mark before the first piece; it carries no text.
    if len(ids) == 2 and not str(tokenizer.decode(ids[:1])).strip():
        ids = ids[1:]
    if len(ids) != 1 or (ids[0] == tokenizer.unk_token_id and token != tokenizer.unk_token):
        pieces = tokenizer.convert_ids_to_tokens(ids)
        raise UserError(
            f"{token!r} must be one token of the reward model's tokenizer, but it becomes {pieces}; "
            "this tokenizer does not belong to a model of that form, or the separator is misspelt"
        )
    return int(ids[0])


def _head_of(model: PreTrainedModel) -> nn.Module:
    for name in ("score", "classifier"):
        head = getattr(model, name, None)
        if isinstance(head, nn.Module):
            return head
    raise UserError(f"{type(model).__name__}: no head named score or classifier to read rewards from")


def _initialise(head: nn.Module, seed: int) -> None:
    # On the CPU, so that the same seed gives the same head on every device.
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        if parameter.dim() == 2:
            values = torch.randn(parameter.shape, generator=generator) * (0.1 / parameter.shape[1] ** 0.5)
        else:
            values = torch.zeros(parameter.shape)
        parameter.data.copy_(values)


def _load_lm_head(folder: Path, model: PreTrainedModel) -> nn.Linear | None:
    path = folder / _LM_HEAD_FILE
    if not path.is_file():
        return None
    weight = load_file(path)["weight"].to(device=model.device, dtype=model.dtype)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=model.device, dtype=model.dtype)
    head.weight.data.copy_(weight)
    return head


def _kind_from_architecture(folder: Path, architectures: Sequence[str]) -> ModelKind:
    for name in architectures:
        if name.endswith("ForTokenClassification"):
            return "prm"
        if name.endswith("ForSequenceClassification"):
            return "orm"
    raise UserError(
        f"{folder}: not a reward model (architectures: {', '.join(architectures) or 'none'}); expected a token or "
        "sequence classifier, or a folder that this project wrote"
    )
