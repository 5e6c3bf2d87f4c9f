"""Folders of Hugging Face models: tokenizers, dtypes, host memory, training on several devices, and refusals."""

import dataclasses
import json
import shutil
import weakref

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from registry.build import build
from registry.resolve import resolve, resolve_recorded
from runners.conversion import fitting
from runners.conversion.foreign_files import read_weights
from runners.conversion.model_folder import write_weights
from runners.conversion.tensors import Tensor, held, write_safetensors
from runners.conversion.tokenizers import write_tokenizer
from runners.main import main as run_main
from runners.training.workdir import recorded
from tasks.vocabularies.subwords import Gpt2Vocabulary, HuggingFaceVocabulary, SentencePieceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary
from tests.support import vocabularies
from tests.support.references.foreign import variables_in
from tests.support.references.hugging_face import arrays_in, bring_in, send_out

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 320,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
SHAPES = {
    "input_layernorm": (32,),
    "post_attention_layernorm": (32,),
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (64, 32),
    "mlp.up_proj": (64, 32),
    "mlp.down_proj": (32, 64),
}


def model_folder(folder, dtype=np.float32, **changes):
    """A folder with a small Llama, made without torch; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    shapes = {"model.embed_tokens.weight": (320, 32), "model.norm.weight": (32,)}
    shapes |= {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in SHAPES.items()}
    random = np.random.default_rng(0)
    save_file(
        {key: random.normal(0, 0.1, shape).astype(dtype) for key, shape in shapes.items()}, folder / "model.safetensors"
    )
    return folder


def test_a_folder_with_its_tokenizer_trains_on_eight_devices_and_goes_back(tmp_path, capsys):
    theirs, run, ours = model_folder(tmp_path / "theirs"), tmp_path / "run", tmp_path / "ours"
    vocabularies.byte_pairs(theirs)
    settings = ["NUM_STEPS=4", "WARMUP_STEPS=1", "SEQ_LEN=32", "LEARNING_RATE=1e-3", "ZERO_STAGE=3", "EVAL_EVERY=none"]
    assert bring_in(theirs, run, *(f"--set={each}" for each in settings)) == 0
    output = capsys.readouterr().out
    assert f"VOCABULARY=huggingface, VOCABULARY_PATH={run / 'tokenizer'}" in output
    shutil.move(theirs, tmp_path / "moved")  # the run has its own copy of the tokenizer
    shutil.move(run, run := tmp_path / "renamed")
    assert run_main([f"--workdir={run}", "--mode=sample", "--prompt=the cat", "--max_new_tokens=4"]) == 0
    assert "the cat" in capsys.readouterr().out
    assert run_main([f"--workdir={run}", "--no-tensorboard"]) == 0
    assert resolve_recorded(recorded(str(run))).ZERO_STAGE == 3
    assert send_out(run, ours) == 0
    assert "at step 4 to" in capsys.readouterr().out
    before, after = load_file(tmp_path / "moved" / "model.safetensors"), load_file(ours / "model.safetensors")
    assert sorted(before) == sorted(after)
    change = np.abs(after["model.layers.1.mlp.down_proj.weight"] - before["model.layers.1.mlp.down_proj.weight"])
    assert 0 < change.max() < 0.1
    assert (ours / "tokenizer.json").read_bytes() == (tmp_path / "moved" / "tokenizer.json").read_bytes()
    config = json.loads((ours / "config.json").read_text())
    assert {name: config[name] for name in CONFIG} == CONFIG
    assert config["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_bfloat16_weights_go_back_unchanged(tmp_path, stored):
    import ml_dtypes

    theirs = model_folder(tmp_path / "theirs", ml_dtypes.bfloat16)
    assert bring_in(theirs, tmp_path / "run", f"--set=PARAM_DTYPE={stored}") == 0
    assert str(variables_in(tmp_path / "run")[1]["params"]["embedding"]["embedding_vm"].dtype) == stored
    assert send_out(tmp_path / "run", tmp_path / "ours", "--dtype=bfloat16") == 0
    assert (tmp_path / "ours" / "model.safetensors").exists()
    ours, before = arrays_in(tmp_path / "ours"), arrays_in(theirs)
    assert {key: (value.dtype, value.tobytes()) for key, value in ours.items()} == {
        key: (value.dtype, value.tobytes()) for key, value in before.items()
    }
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_import_holds_one_tensor_at_a_time(tmp_path, monkeypatch):
    """Arrays that the reader returned and that are still alive when it is called again."""
    alive, most, fitted = [], 0, fitting.fitted

    def counted(tensor):
        def read():
            nonlocal most
            alive[:] = [each for each in alive if each() is not None]
            most = max(most, len(alive))
            array = tensor.read()
            alive.append(weakref.ref(array))
            return array

        return dataclasses.replace(tensor, read=read)

    count_all = lambda *given: {key: counted(tensor) for key, tensor in fitted(*given).items()}
    monkeypatch.setattr(fitting, "fitted", count_all)
    assert bring_in(model_folder(tmp_path / "theirs"), tmp_path / "run") == 0
    assert alive
    assert most <= 1


def test_an_export_reads_one_tensor_at_a_time(tmp_path):
    read = []
    tensor = lambda name: Tensor((4, 2), lambda: read.append(name) or np.full((4, 2), len(name), np.float32))
    write_weights(tmp_path, {name: tensor(name) for name in ("a", "bb", "ccc")}, None, 64)
    assert read == ["a", "bb", "ccc"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 96}
    assert arrays_in(tmp_path)["ccc"].tolist() == [[3, 3]] * 4


def test_written_files_are_read_by_the_library(tmp_path):
    arrays = {
        "b": np.float32(3),
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "c": np.zeros((0, 4), np.float16),
    }
    write_safetensors(tmp_path / "x.safetensors", {key: held(np.asarray(value)) for key, value in arrays.items()})
    found = load_file(tmp_path / "x.safetensors")
    assert {key: (value.dtype, value.tolist()) for key, value in found.items()} == {
        key: (np.asarray(value).dtype, np.asarray(value).tolist()) for key, value in arrays.items()
    }
    assert read_weights(str(tmp_path / "x.safetensors")).arrays["a"].shape == (3, 2)


TEXTS = [
    vocabularies.TEXT,
    vocabularies.ODD.replace("<|endoftext|> </s> \x00", ""),
    "",
    " two  spaces ",
    "\u0100\u0120",
]


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: ByteVocabulary(),
        lambda folder: ByteVocabulary(special_tokens=3),
        lambda folder: HuggingFaceVocabulary(str(vocabularies.byte_pairs(folder))),
        lambda folder: HuggingFaceVocabulary(str(vocabularies.byte_pairs(folder) / "tokenizer.json")),
        lambda folder: Gpt2Vocabulary(str(vocabularies.byte_pairs(folder))),
        lambda folder: SentencePieceVocabulary(str(vocabularies.sentence_piece(folder / "words.model"))),
    ],
    ids=["bytes", "special bytes", "tokenizer", "tokenizer.json", "GPT-2's files", "SentencePiece"],
)
def test_auto_tokenizer_encodes_as_the_vocabulary(tmp_path, make):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")
    (tmp_path / "source").mkdir()
    vocabulary = make(tmp_path / "source")
    (tmp_path / "to").mkdir()
    write_tokenizer(vocabulary, tmp_path / "to")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "to")
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ids == list(vocabulary.encode(text))
        if not isinstance(vocabulary, SentencePieceVocabulary):
            assert theirs.decode(ids) == text == vocabulary.decode(ids)
    assert len(theirs) == vocabulary.size


IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_special_ids_go_back(tmp_path, with_tokenizer):
    ids = {"bos_token_id": 7, "eos_token_id": [3, 9], "pad_token_id": None}
    theirs = model_folder(tmp_path / "theirs", **ids)
    if with_tokenizer:
        vocabularies.byte_pairs(theirs)
        (theirs / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": [3, 9]}))
    assert bring_in(theirs / "config.json", tmp_path / "run") == 0
    assert send_out(tmp_path / "run", tmp_path / "ours-3.2") == 0
    expected = ids if with_tokenizer else dict.fromkeys(IDS)
    config = json.loads((tmp_path / "ours-3.2" / "config.json").read_text())
    assert {name: config[name] for name in IDS} == expected
    generation = json.loads((tmp_path / "ours-3.2" / "generation_config.json").read_text())
    assert {name: generation[name] for name in IDS} == expected
    assert generation.get("temperature") == (0.6 if with_tokenizer else None)


def test_a_change_of_the_model_is_noted(tmp_path, capsys):
    theirs = model_folder(tmp_path / "theirs")
    assert bring_in(theirs, tmp_path / "run", "--set=ROTARY_BASE=5") == 0
    out = capsys.readouterr().out
    assert out.count("Note: ") == 1
    assert f"mixer.rotary_base is 10000.0 in '{theirs}' (got 5.0), so outputs differ." in out


def test_a_sentencepiece_model_goes_out_and_comes_back(tmp_path, capsys):
    theirs, run = model_folder(tmp_path / "theirs"), tmp_path / "run"
    path = vocabularies.sentence_piece(tmp_path / "words.model")
    assert bring_in(theirs, run, "--set=VOCABULARY=sentencepiece", f"--set=VOCABULARY_PATH={path}") == 0
    assert send_out(run, tmp_path / "ours") == 0
    assert bring_in(tmp_path / "ours", tmp_path / "again") == 0
    own = tmp_path / "again" / "tokenizer" / "tokenizer.model"
    assert f"VOCABULARY=sentencepiece, VOCABULARY_PATH={own}" in capsys.readouterr().out
    assert own.read_bytes() == path.read_bytes()


def test_a_text_starts_with_the_token_that_the_tokenizer_adds(tmp_path):
    from tokenizers import Tokenizer, processors

    folder = vocabularies.byte_pairs(tmp_path / "plain")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    start = tokenizer.token_to_id("<s>")
    for template, expected in (("<s> $A", start), ("<s> $A </s>", None), ("$A </s>", None)):
        tokens = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>") if name in template]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)
        file = tmp_path / f"{len(template)}.json"
        tokenizer.save(str(file))
        vocabulary = HuggingFaceVocabulary(str(file))
        assert vocabulary.start_id == expected
        assert vocabulary.encode("the cat")[0] != start
    assert HuggingFaceVocabulary(str(folder)).start_id is None


def test_an_import_into_an_entry_of_the_same_model(tmp_path, capsys):
    theirs = model_folder(tmp_path / "theirs")
    (tmp_path / "mine.py").write_text("")
    same = "--exp=registry.templates.llama_lm.LlamaLm"
    sizes = [
        f"--set={each}" for each in ("NUM_LAYERS=2", "MODEL_DIM=32", "FFN_DIM=64", "NUM_HEADS=4", "VOCAB_SIZE=320")
    ]
    more = [*sizes, "--set=CONTEXT_LEN=64", "--set=NORM_EPSILON=1e-6", "--set=TIE_EMBEDDINGS=true"]
    assert bring_in(theirs, tmp_path / "run", same, *more) == 2
    assert "has another model than LlamaLm: task.model.stack.block.mixer.num_kv_heads is 2 there (got 4)." in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()
    assert bring_in(theirs, tmp_path / "run", same, *more, "--set=NUM_KV_HEADS=2") == 0


def refused(capsys, code):
    out, err = capsys.readouterr()
    assert code == 2
    assert err.startswith("vortaro: ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    return err


def test_refused_folders(tmp_path, capsys):
    folder, run = tmp_path / "theirs", tmp_path / "run"
    model_folder(folder, rope_scaling={"rope_type": "magic"})
    assert "rope_scaling" in refused(capsys, bring_in(folder, run))
    model_folder(folder, unheard_of=1)
    assert "has the key unheard_of, which is unknown for llama models." in refused(capsys, bring_in(folder, run))
    model_folder(folder, hidden_size=64)
    assert "embed_tokens.weight is 320x32 in" in refused(capsys, bring_in(folder, run))
    model_folder(folder, dtype=np.int32)
    assert "is stored as I32, which is not supported." in refused(capsys, bring_in(folder, run))
    model_folder(folder)
    (folder / "model.safetensors").unlink()
    assert "has none of model.safetensors.index.json, model.safetensors" in refused(capsys, bring_in(folder, run))
    model_folder(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer" in refused(capsys, bring_in(folder, run))
    vocabularies.byte_pairs(folder)
    (folder / "generation_config.json").write_text("[1]")
    assert "is not a JSON object (got a list)" in refused(capsys, bring_in(folder, run))
    model_folder(folder)
    assert "--smoke does not fit the sizes in the config.json" in refused(capsys, bring_in(folder, run, "--smoke"))
    model_folder(folder, model_type="gpt2")
    assert "Give --format=gpt2 and --exp, the experiment" in refused(capsys, bring_in(folder, run))
    assert not run.exists()


def test_refused_exports(tmp_path, capsys):
    run = tmp_path / "run"
    assert bring_in(model_folder(tmp_path / "theirs"), run) == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("")
    capsys.readouterr()
    assert "exists and is not an empty folder. Choose another --to." in refused(
        capsys, send_out(run, tmp_path / "full")
    )
    error = refused(capsys, send_out(run, tmp_path / "ours", "--format=gemma2"))
    assert "gemma2 models differ from LlamaLm: " in error
    (tmp_path / "file").write_text("")
    assert "cannot be written to" in refused(capsys, send_out(run, tmp_path / "file" / "ours"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "run", "theirs"]


def test_models_that_no_family_represents(tmp_path, capsys):
    from layers.errors import UsageError
    from registry.hugging_face.representation import representing_family

    assert representing_family(resolve("tiny.StdlibTinyLlama")).model_type == "llama"
    with pytest.raises(UsageError, match=r"models differ from VQTiny: "):
        representing_family(resolve("vq.VQTiny"))
    build(resolve("tiny.StdlibTinyLlama").Task(), "task")
