"""Steps in characters and tokens, with a byte-level BPE tokenizer made here."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.steps import TokenPieces, align_ends, load_splitter, piece_ends, split_rollouts
from grpo_pipeline.tables import from_rows
from tests.labelling.scripted import CharTokenizer, rollout_row


class ByteTokenizer:
    """Byte-level BPE with merges over line ends and parts of characters, since it splits no words first."""

    eos_token_id = 0
    pad_token_id = 0

    def __init__(self):
        self._tokenizer = Tokenizer(models.BPE())
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=["<end>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        corpus = ["a\nb\n\nc é\n日本\n1 + 2 = 3\n😀x\n"] * 50 + ["\n日\n本a\nb"] * 50
        self._tokenizer.train_from_iterator(corpus, trainer)

    def encode(self, text, *, add_special_tokens=True):
        return self._tokenizer.encode(text).ids

    def decode(self, token_ids, *, skip_special_tokens=True):
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def bytes_of(self, token):
        """The token's bytes, by the byte-level alphabet: an oracle that decodes nothing."""
        return b"" if token == 0 else bytes(TO_BYTE[c] for c in self._tokenizer.id_to_token(token))


def byte_alphabet():
    """GPT-2's table of printable stand-ins for the 256 bytes, from its definition."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


TO_BYTE = {c: b for b, c in byte_alphabet().items()}
TOKENIZER = ByteTokenizer()
SINGLE = {TOKENIZER.bytes_of(token): token for token in range(1, 257)}
texts = st.lists(
    st.sampled_from(["a", "b", "\n", "\n\n", " ", "é", "日", "本", "😀", "x = 1", "\r\n", "\t"]), max_size=20
).map("".join)


def pieces(text, splitter):
    ends = load_splitter(splitter)(text)
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("one", ["one"]),
        ("one\ntwo", ["one\n", "two"]),
        ("one\ntwo\n", ["one\n", "two\n"]),
        ("one\n\n \ntwo", ["one\n\n \n", "two"]),
        ("\n\none\ntwo\n\n", ["\n\none\n", "two\n\n"]),
        ("\n \n", ["\n \n"]),
        ("one\r\ntwo", ["one\r\n", "two"]),
    ],
)
def test_line_splitter(text, expected):
    assert pieces(text, "line") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n\nc", ["a\nb\n\n", "c"]),
        ("a\n \t\n\nb\n\n", ["a\n \t\n\n", "b\n\n"]),
        ("\n\na\n\n  b", ["\n\na\n\n", "  b"]),
        ("a\nb", ["a\nb"]),
    ],
)
def test_paragraph_splitter(text, expected):
    assert pieces(text, "paragraph") == expected


@given(texts, st.sampled_from(["line", "paragraph"]))
def test_pieces_join_to_the_text_and_none_is_white_space_alone(text, splitter):
    found = pieces(text, splitter)
    assert "".join(found) == text
    assert len(found) == 1 or all(piece.strip() for piece in found)


def oracle(tokens, text, ends):
    """The token that holds the last byte of each character before an end, by counting bytes."""
    holder = [index for index, token in enumerate(tokens) for _ in TOKENIZER.bytes_of(token)]
    return [holder[len(text[:end].encode()) - 1] for end in ends]


@settings(max_examples=300, deadline=None)
@given(texts, st.randoms(use_true_random=False))
def test_token_ends_equal_those_found_by_counting_bytes(text, rng):
    """Sampled tokens need not be how the tokenizer would encode: cut the text's bytes into tokens at random."""
    tokens = TOKENIZER.encode(text)
    loose = []
    for token in tokens:
        # Bytes of a token one by one, now and then: characters split over tokens.
        loose += [SINGLE[bytes([b])] for b in TOKENIZER.bytes_of(token)] if rng.random() < 0.5 else [token]
    ends = load_splitter("line")(text)
    assert align_ends(TOKENIZER, [*loose, 0], text, ends) == oracle(loose, text, ends)
    added_up = piece_ends(TokenPieces(TOKENIZER), [*loose, 0], text, ends)
    assert added_up == oracle(loose, text, ends) if text.isascii() else added_up in (None, oracle(loose, text, ends))


def test_boundary_inside_a_token_and_two_steps_in_one_token():
    token = next(
        t for t in range(257, 330) if TOKENIZER.bytes_of(t).count(b"\n") == 2 and TOKENIZER.bytes_of(t).strip()
    )
    held = TOKENIZER.bytes_of(token).decode()
    text = f"x{held}"
    tokens = [*TOKENIZER.encode("x"), token, 0]
    ends = [i + 1 for i, c in enumerate(text) if c == "\n"]
    assert align_ends(TOKENIZER, tokens, text, ends) == [1, 1]


def test_the_last_step_ends_before_stop_string_and_eos():
    row = rollout_row("p0", 0, "q", "a\nb")
    row["token_ids"] = [ord(c) for c in "a\nbSTOP"] + [0]
    steps = split_rollouts(from_rows([row], "rollouts"), CharTokenizer(), "line")
    assert steps["token_end"].to_list() == [1, 2]
    assert steps["is_last"].to_list() == [False, True]
    assert steps["text"].to_list() == ["a\n", "b"]


def test_empty_responses_have_no_steps_and_others_keep_theirs():
    rows = [rollout_row("p0", 0, "q", ""), rollout_row("p0", 1, "q", "a")]
    steps = split_rollouts(from_rows(rows, "rollouts"), CharTokenizer(), "line")
    assert steps["rollout_id"].to_list() == ["p0r1"]


def test_same_prefix_tokens_have_the_same_hash():
    rows = [
        rollout_row("p0", 0, "q", "a\nb\nc"),
        rollout_row("p0", 1, "q", "a\nb\nd"),
        rollout_row("p1", 0, "Q", "a\nb\nc"),
    ]
    hashes = split_rollouts(from_rows(rows, "rollouts"), CharTokenizer(), "line")["prefix_hash"].to_list()
    assert hashes[0:2] == hashes[3:5]
    assert len(set(hashes)) == 2 + 2 + 3


def test_text_of_another_tokenizer_is_refused():
    row = rollout_row("p0", 0, "q", "a\nb") | {"text": "a\nc"}
    with pytest.raises(ValueError, match="p0r0"):
        split_rollouts(from_rows([row], "rollouts"), CharTokenizer(), "line")


def split_words(text):
    return text.split(" ")


def split_offsets(text):
    return [1, len(text)]


def split_nothing(text):
    """A function that forgot its return."""


def split_mixed(text):
    return [1, text]


def test_users_splitters():
    assert load_splitter(f"{__name__}:split_offsets")("abc") == [1, 3]
    with pytest.raises(UserError, match="do not join"):
        load_splitter(f"{__name__}:split_words")("a b")
    with pytest.raises(UserError, match="must rise"):
        load_splitter(f"{__name__}:split_offsets")("a")
    for wrong in ("split_nothing", "split_mixed"):
        with pytest.raises(UserError, match=f"{wrong}' returned .* it must return the steps' texts, or the offsets"):
            load_splitter(f"{__name__}:{wrong}")("a b")


@pytest.mark.parametrize("name", ["sentence", "nowhere.at.all:f", f"{__name__}:missing", f"{__name__}:TOKENIZER"])
def test_splitters_that_cannot_be_loaded_are_refused(name):
    with pytest.raises(UserError, match="splitter"):
        load_splitter(name)
