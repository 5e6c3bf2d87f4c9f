"""Requests get the numbers of the harness's own Hugging Face model on the same weights, one by one."""

import string

import numpy as np
import pytest

from tests.support import evals
from tests.support.references import foreign, hugging_face
from tests.support.vocabularies import ODD, TEXT, byte_pairs

HOW = "needs the harness with torch: pip install -c constraints.txt -e '.[torch,evals]' 'lm-eval[hf]'"
torch = pytest.importorskip("torch", reason=HOW)
transformers = pytest.importorskip("transformers", reason=HOW)
for package in ("lm_eval", "accelerate", "peft"):
    pytest.importorskip(package, reason=HOW)
pytestmark = pytest.mark.slow

POSITIONS, WIDTH = 48, 32
LONG = "the cat sat on the mat and the dog sat on the log, while def f(x): return x + 1 stayed. " * 4
PAIRS = {
    "plain": ("the cat sat on", " the mat"),
    "one token": ("the cat sat on the", "."),
    "no context": ("", "the cat sat"),
    "only white space as context": (" \n", "the cat"),
    "white space at the end of the context": ("the cat sat ", "on the mat"),
    "line ends at the border": ("def f(x):\n    ", "return x + 1\n"),
    "white space in both": ("the cat ", "  sat"),
    "context longer than the model": (LONG, " the mat"),
    "context one longer than the model": ("a b " * (POSITIONS // 4) + "c", "d"),
    "as long as the model": ("a" * (POSITIONS - 3), "bcd"),
    "long continuation": ("x", "y" * (POSITIONS - 1)),
    "continuation that fills the model": ("the cat", "z" * POSITIONS),
    "unicode": ("naïve 日本語", " 🐈 ñ"),
    "border inside a word": ("return", "ing the catalog"),
    "several lines": ("a\n\nb\n", "\n\nc"),
}
CHOICES = [("the dog sat on the", f" {word}") for word in ("log", "mat", "cat", "dog", "log")]
LETTERS = [("Answer:", letter) for letter in "ABCDEFGHIJKL"]  # more than are scored in one row
TEXTS = ["", "the", "the cat sat on the mat\n", LONG, "a" * POSITIONS, "b" * (POSITIONS + 1), "日本語 naïve " * 9]
GREEDY = {
    "until nothing": {"max_gen_toks": 12},
    "until several strings": {"until": ["qq", "e", "\n\n"], "max_gen_toks": 20},
    "until a string of several tokens": {"until": ["the"], "max_gen_toks": 33},
    "until strings that overlap": {"until": ["at", "t", "sa"], "max_gen_toks": 20},
    "with a temperature of 0": {"until": "x", "temperature": 0.0, "do_sample": False, "max_gen_toks": 7},
}
PROMPTS = ["the cat sat on", "a", LONG, "日本語", "def f(x):\n", "the dog ", "naïve 🐈"]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def models(request, tmp_path_factory):
    """A model that has learned a little as a model of the harness: Hugging Face's, and the one of a run folder.

    GPT-2 has learned positions and the end token as prefix. The Llama has a start token before each text.
    """
    from lm_eval.models.huggingface import HFLM

    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = tokenizer_in(folder, has_start=request.param == "llama")
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ends["vocab_size"] = len(tokenizer)
    torch.manual_seed(3)
    model = {"gpt2": gpt2, "llama": llama}[request.param](**ends).eval()
    learn(model, torch.tensor(tokenizer.encode(TEXT + ODD)))
    model.save_pretrained(folder / "theirs")
    if request.param == "gpt2":
        knobs = [f"VOCAB_SIZE={len(tokenizer)}", f"MODEL_DIM={WIDTH}", f"SEQ_LEN={POSITIONS}", "NUM_HEADS=4"]
        knobs += ["DATA=text", "VOCABULARY=huggingface", f"VOCABULARY_PATH={folder / 'tokenizer'}"]
        assert foreign.bring_in("gpt2", folder / "theirs", "gpt2.Gpt2Small", folder / "run", *knobs) == 0
    else:
        tokenizer.save_pretrained(folder / "theirs")
        assert hugging_face.bring_in(folder / "theirs", folder / "run") == 0
    # Its cache of logits confuses one-token continuations with others whose last token follows the same tokens.
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, logits_cache=False), ours(folder / "run")


def tokenizer_in(folder, *, has_start):
    """A byte-level tokenizer, which is also saved to `folder / "tokenizer"`."""
    from tokenizers import Tokenizer, processors

    byte_pairs(folder / "bytes")
    library, start = Tokenizer.from_file(str(folder / "bytes" / "tokenizer.json")), "<|endoftext|>"
    if has_start:
        start = "<s>"
        library.add_special_tokens([start])
        special = [(start, library.token_to_id(start))]
        library.post_processor = processors.TemplateProcessing(single=f"{start} $A", special_tokens=special)
    tokens = {"bos_token": start, "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=library, model_max_length=POSITIONS, **tokens)
    tokenizer.save_pretrained(folder / "tokenizer")
    return tokenizer


def gpt2(**tokens):
    sizes = {"n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts, **tokens))


def llama(**tokens):
    sizes = hugging_face.GROUPED | {"max_position_embeddings": POSITIONS, "hidden_size": WIDTH}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | tokens)))


def learn(model, tokens, steps=120):
    """Trains a little, so that greedy texts differ by prompt and contain stop strings."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        starts = [(7 * step + 13 * row) % (len(tokens) - POSITIONS) for row in range(8)]
        rows = torch.stack([tokens[start : start + POSITIONS] for start in starts])
        optimizer.zero_grad()
        model(rows, labels=rows).loss.backward()
        optimizer.step()


def ours(folder):
    from runners.evals.adapter import session_model

    session, variables = foreign.variables_in(folder)
    model = session_model(session, batch_tokens=512)
    model.variables = variables
    return model


def requests(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=given, idx=i) for i, given in enumerate(arguments)]


def compare(models, arguments):
    """Compares log-probabilities to 1e-4, and greedy flags; returns the flags."""
    theirs, own = (model.loglikelihood(requests("loglikelihood", arguments)) for model in models)
    np.testing.assert_allclose([a[0] for a in own], [a[0] for a in theirs], atol=1e-4, rtol=0)
    assert [a[1] for a in own] == [a[1] for a in theirs]
    return [a[1] for a in own]


def pairs_that_both_score():
    """All pairs, without the one whose context the Hugging Face model refuses."""
    return [pair for name, pair in PAIRS.items() if name != "only white space as context"]


def test_log_probabilities_and_greedy_flags(models):
    compare(models, [*pairs_that_both_score(), *CHOICES, *LETTERS])


def test_continuations_that_greedy_decoding_gives(models):
    """Of all one-letter continuations at most one is greedy, and some contexts have one."""
    contexts = [f"the {word}" for word in ("cat", "dog", "mat", "log", "sat", "def", "return", "on")]
    flags = compare(models, [(context, letter) for context in contexts for letter in string.printable])
    assert 0 < sum(flags) <= len(contexts)


def test_texts_longer_than_the_model(models):
    theirs, own = (model.loglikelihood_rolling(requests("rolling", [(text,) for text in TEXTS])) for model in models)
    np.testing.assert_allclose(own, theirs, atol=1e-4, rtol=1e-6)
    assert (own[0] == 0) == (models[0].tok_encode("") == [])


@pytest.mark.parametrize("choices", GREEDY.values(), ids=GREEDY)
def test_greedy_texts(models, choices):
    arguments = [(prompt, choices) for prompt in PROMPTS]
    theirs, own = (model.generate_until(requests("generate_until", arguments)) for model in models)
    assert own == theirs
    assert len(set(own)) > 2


def test_greedy_texts_end_at_each_end_token(models, monkeypatch):
    """As with a list in eos_token_id of generation_config.json; some greedy texts contain the second one."""
    theirs, own = models
    arguments = [(prompt, {"max_gen_toks": 12}) for prompt in PROMPTS]
    free = own.generate_until(requests("generate_until", arguments))
    stop_id, other = own.eot_token_id, own.tok_encode("the", add_special_tokens=False)[-1]
    monkeypatch.setattr(theirs.model.generation_config, "eos_token_id", [stop_id, other])
    monkeypatch.setattr(type(own._vocabulary), "stop_ids", property(lambda self: (stop_id, other)))
    expected, found = (model.generate_until(requests("generate_until", arguments)) for model in models)
    assert found == expected
    assert found != free


def test_the_prefix_is_the_named_start_token(models, monkeypatch):
    """Also one that the tokenizer does not put before texts."""
    theirs, own = models
    assert own.prefix_token_id == theirs.prefix_token_id
    [named] = own.tok_encode("t", add_special_tokens=False)
    monkeypatch.setattr(type(own._vocabulary), "named_start_id", property(lambda self: named))
    before = theirs.tokenizer.bos_token
    theirs.tokenizer.bos_token = "t"
    try:
        assert own.prefix_token_id == theirs.prefix_token_id == named
    finally:
        theirs.tokenizer.bos_token = before


def test_white_space_as_context_counts_as_no_context(models):
    _, own = models
    asked = [PAIRS["only white space as context"], ("", " \nthe cat")]
    one, other = own.loglikelihood(requests("loglikelihood", asked))
    assert one == other


def test_metrics_of_tasks(models, tmp_path):
    """Both models through the harness, with solved examples in the prompts."""
    from lm_eval.evaluator import evaluate

    from runners.evals.library import quiet_harness
    from runners.evals.suite import scalars_of
    from runners.evals.task_files import load_tasks
    from tasks.programs import EvalTasks

    wanted = EvalTasks(names=evals.NAMES, path=str(evals.task_files(tmp_path / "tasks")), num_fewshot=1)
    found = []
    for model in models:
        loaded = load_tasks(wanted)
        for task in loaded["tasks"].values():
            task.set_fewshot_seed(seed=0)
        with quiet_harness():
            found.append(scalars_of(evaluate(lm=model, task_dict=loaded, bootstrap_iters=10)))
    theirs, own = found
    assert set(own) == set(theirs) == set(evals.NAMES)
    for task, scalars in own.items():
        assert scalars == pytest.approx(theirs[task], rel=1e-4)


def test_equal_requests_are_scored_once(models, capsys):
    _, own = models
    own.loglikelihood(requests("loglikelihood", [PAIRS["plain"]] * 50))
    assert capsys.readouterr().out == "Scored 50 continuations in 1 batch of 1 shape.\n"
