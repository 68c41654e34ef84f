import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification

from grpo_pipeline.errors import UserError
from grpo_pipeline.models.forms import QwenPrmForm, RlhflowForm, StepwiseForm, TagForm, score_texts
from grpo_pipeline.models.loading import load_policy, load_tokenizer
from grpo_pipeline.models.others import load_qwen_prm, open_prm
from grpo_pipeline.models.reward import RewardModel

from .conftest import make_tokenizer
from .others import CHAT, save_chat_model, save_qwen_prm

QUESTION, STEPS = "2+3*4=?", ["3*4=12", "2+12=15", "x"]


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    save_chat_model(folder)
    return folder


def test_math_shepherd_form_is_its_model_cards_recipe(policy_folder):
    model, form = open_prm(policy_folder, "math-shepherd")
    got = score_texts(model, form, [(QUESTION, STEPS)])[0]
    # The model card's own lines, on the same model.
    tokenizer, policy = load_tokenizer(policy_folder), load_policy(policy_folder)
    candidates = [tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]]
    ids = torch.tensor([tokenizer.encode(f"{QUESTION} 3*4=12 ки\n2+12=15 ки\nx ки")])
    scores = policy(ids).logits[:, :, candidates].softmax(dim=-1)[:, :, 0]
    assert got == pytest.approx(scores[ids == tokenizer.encode("ки")[-1]].detach().numpy(), abs=1e-6)
    assert len(got) == 3


def test_rlhflow_form_is_its_evaluation_loop(chat_folder):
    model, form = open_prm(chat_folder, "rlhflow")
    got = score_texts(model, form, [(QUESTION, STEPS)])[0]
    tokenizer, policy = load_tokenizer(chat_folder), load_policy(chat_folder)
    candidates = [tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]]
    conversation, expected = [], []
    for index, step in enumerate(STEPS):
        conversation.append({"content": f"{QUESTION} {step}" if index == 0 else step, "role": "user"})
        conversation.append({"content": "+", "role": "assistant"})
        text = tokenizer.apply_chat_template(conversation, tokenize=False)
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        # -1 is the end of turn, -2 the "+", -3 the token that predicts it.
        expected.append(policy(ids).logits[:, -3, candidates].softmax(dim=-1)[0, 0].item())
    assert got == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    backbone, head = save_qwen_prm(folder)
    return folder, backbone, head


def test_qwen_form_is_its_model_cards_recipe_without_remote_code(qwen_folder):
    folder, backbone, head = qwen_folder
    model, form = open_prm(folder, "qwen")
    got = score_texts(model, form, [(QUESTION, STEPS)])[0]
    tokenizer = load_tokenizer(folder)
    turns = [
        {"role": "system", "content": "Please reason step by step, and put your final answer within \\boxed{}."},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "<extra_0>".join(STEPS) + "<extra_0>"},
    ]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    probabilities = head(backbone(ids).last_hidden_state).softmax(dim=-1)[:, :, 1]
    expected = probabilities[ids == tokenizer.convert_tokens_to_ids("<extra_0>")].detach().numpy()
    assert got == pytest.approx(expected, abs=1e-6)


def test_another_model_is_not_taken_for_qwens(policy_folder):
    with pytest.raises(UserError, match=r"it lacks score\.0"):
        load_qwen_prm(policy_folder)


def test_trl_form_reads_after_each_separator(policy_folder, tmp_path):
    plain = AutoModelForTokenClassification.from_pretrained(policy_folder, num_labels=2).eval()
    plain.save_pretrained(tmp_path)
    load_tokenizer(policy_folder).save_pretrained(tmp_path)
    model, form = open_prm(tmp_path, "trl")
    got = score_texts(model, form, [(QUESTION, STEPS)])[0]
    tokenizer = load_tokenizer(policy_folder)
    ids = tokenizer.encode(QUESTION + "".join(f"{step}\n" for step in STEPS))
    ends = [index for index, token in enumerate(ids) if token == tokenizer.encode("\n")[0]]
    assert got == pytest.approx(plain(torch.tensor([ids])).logits[0, ends].softmax(-1)[:, 1].tolist(), abs=1e-6)


def test_own_form_writes_a_solution_as_our_rollouts_do(policy_folder):
    tokenizer = load_tokenizer(policy_folder)
    encoded = StepwiseForm(tokenizer).encode(QUESTION, STEPS)
    assert tokenizer.decode(encoded.input_ids) == f"{QUESTION}\n3*4=12\n2+12=15\nx"
    # Character tokens: a step ends with its line break, the last one with its last character.
    assert encoded.positions.tolist() == [14, 22, 23]


def test_bos_is_there_only_where_rollouts_have_it_or_trl_puts_it():
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "<eos>"  # known to the tokenizer, but not added by it, as with SmolLM2
    own = StepwiseForm(tokenizer).encode(QUESTION, STEPS).input_ids.tolist()
    assert own[0] == tokenizer.encode("2")[0]
    assert StepwiseForm(tokenizer, trl=True).encode(QUESTION, STEPS).input_ids[:2].tolist() == [1, own[0]]


def test_many_solutions_keep_their_order(policy_folder):
    model = RewardModel.from_policy(policy_folder, "prm", 0)
    form = StepwiseForm(model.tokenizer)
    solutions = [("1+1=?", ["2"]), (QUESTION, STEPS), ("7=?", ["7", "8"])]
    together = score_texts(model, form, solutions, tokens_per_batch=30)
    alone = [score_texts(model, form, [solution])[0] for solution in solutions]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_separator_inside_a_step_is_an_error_not_a_shift(policy_folder):
    model, form = open_prm(policy_folder, "math-shepherd")
    with pytest.raises(UserError, match="solution 1: 3 label positions for 2 steps"):
        score_texts(model, form, [(QUESTION, STEPS), (QUESTION, ["a ки b", "c"])])


def test_a_tokenizer_without_the_separator_is_an_error(policy_folder, chat_folder):
    tokenizer = load_tokenizer(policy_folder)
    with pytest.raises(UserError, match="'<sep>' must be one token"):
        TagForm(tokenizer, tag="<sep>").encode(QUESTION, STEPS)
    with pytest.raises(UserError, match="needs a chat template"):
        RlhflowForm(tokenizer).encode(QUESTION, STEPS)
    with pytest.raises(UserError, match="needs a chat template"):
        QwenPrmForm(tokenizer).encode(QUESTION, STEPS)
    chat = load_tokenizer(chat_folder)
    chat.chat_template = CHAT.replace("a:", "a: ")
    with pytest.raises(UserError, match="does not put '\\+' right after"):
        RlhflowForm(chat).encode(QUESTION, STEPS)


def test_an_empty_step_has_no_token_to_judge(policy_folder):
    with pytest.raises(UserError, match="step 0 is empty"):
        StepwiseForm(load_tokenizer(policy_folder), separator="").encode(QUESTION, ["", "a"])
