"""The embedded model's tokenizer: byte-level BPE that keeps digits apart.

Byte level means that every text can be encoded and comes back byte for byte. Each digit is a token of its
own, so that sums are learnt digit by digit instead of as one fact per pair of numbers. A space goes with
the word or sign before a number ("gives away " + "5", " + " + "5"), which keeps responses short.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, EOS = "<|pad|>", "<|end|>"

# In order: words with the space before them (and the one after, when a number follows), one digit, signs with
# the spaces around them, then any other white space.
_PIECES = r" ?\p{L}+(?: (?=\p{N}))?|\p{N}| ?[^\s\p{L}\p{N}]+(?: (?=\p{N}))?|\s+"


def train_tokenizer(texts: Iterable[str], vocab_size: int = 512) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the demonstrations' texts.

    Args:
        texts: Questions and solutions.
        vocab_size: At most this many tokens: 2 special ones, 256 bytes, the rest learnt.

    Returns:
        A tokenizer with PAD (id 0) and EOS (id 1) and no BOS; encoding never adds a special token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
