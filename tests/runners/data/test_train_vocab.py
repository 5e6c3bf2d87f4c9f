"""--mode=train_vocab: what it writes, when it does not, and commands that wait."""

import json
import os
import threading

import pytest

from layers.errors import UsageError
from registry.resolve import resolve
from runners.data import train_vocab
from runners.main import main
from runners.sampling.sample import prompt_ids
from tasks.inputs.rows import TokensInput
from tasks.storage.locks import locked
from tasks.vocabularies.subwords import SentencePieceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary
from tests.support.vocabularies import TEXT, sentence_piece


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with a text file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 40)
    return tmp_path


KNOBS = ("VOCABULARY=sentencepiece", "VOCABULARY_PATH=out/words.model", "VOCAB_SIZE=40", "DATA_PATH=text.txt")


def run(capsys, *more, knobs=KNOBS):
    capsys.readouterr()
    sets = [f"--set={knob}" for knob in (*knobs, *more)]
    code = main(["--exp=tiny.StdlibTiny", "--smoke", "--mode=train_vocab", *sets])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_it_trains_by_the_settings(folder, capsys, model):
    size = 40 if model == "bpe" else 28
    knobs = (f"SENTENCEPIECE_MODEL={model}", f"VOCAB_SIZE={size}")
    code, out, err = run(capsys, *knobs)
    assert code == 0, err
    assert f"Trained {size} pieces" in out
    assert "Held-out text: " in out
    assert "bytes per token" in out
    vocabulary = SentencePieceVocabulary("out/words.model")
    assert (vocabulary.size, vocabulary.stop_id) == (size, 1)
    assert vocabulary.token_bytes()[:3].tolist() == [0, 0, 0]
    assert vocabulary.decode(vocabulary.encode("the cat")) == "the cat"
    first = (folder / "out" / "words.model").read_bytes()
    written = sorted(path.name for path in (folder / "out").iterdir())
    assert written == [".words.model.lock", "words.model", "words.model.json"]
    code, out, _ = run(capsys, *knobs)
    assert code == 0
    assert "already exists with the same settings and texts. It is kept." in out
    (folder / "out" / "words.model").unlink()
    assert run(capsys, *knobs)[0] == 0
    assert (folder / "out" / "words.model").read_bytes() == first, "the same texts give the same bits"


def test_the_limit_counts_bytes_of_complete_lines(folder, capsys):
    code, out, _ = run(capsys, "VOCABULARY_BYTES=1000")
    assert code == 0
    read = int(out.partition(" bytes in ")[0].rpartition(" ")[2].replace(",", ""))
    assert 1000 - max(map(len, TEXT.split("\n"))) <= read <= 1000


def test_a_vocabulary_is_not_overwritten(folder, capsys):
    assert run(capsys)[0] == 0
    before = (folder / "out" / "words.model").read_bytes()
    code, _, err = run(capsys, "VOCAB_SIZE=41")
    assert code == 2
    assert "contains another vocabulary, which differs in size. Set another VOCABULARY_PATH, or delete the file." in err
    (folder / "text.txt").write_text(TEXT.replace("cat", "cow") * 40)
    assert "which differs in texts. " in run(capsys)[2]
    (folder / "out" / "words.model.json").unlink()
    assert "without a record of its training" in run(capsys)[2]
    assert (folder / "out" / "words.model").read_bytes() == before


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (["VOCAB_SIZE=9000"], "VOCAB_SIZE must be at most "),
        (["VOCAB_SIZE=10"], "VOCAB_SIZE must be at least "),
        (["VOCAB_SIZE=9000", "SENTENCEPIECE_MODEL=unigram"], "VOCAB_SIZE must be at most "),
        (["VOCABULARY_BYTES=3"], "No line of text fits into VOCABULARY_BYTES (got 3)."),
        (["VOCABULARY_BYTES=0"], "VOCABULARY_BYTES must be at least 1 (got 0)"),
        (["VOCABULARY=bytes"], "needs VOCABULARY = sentencepiece (got bytes). Use --set=VOCABULARY=sentencepiece"),
        (["VOCABULARY_PATH=none"], "VOCABULARY_PATH must be a path on a local disk, for the trained model (got None)"),
        (["VOCABULARY_PATH=gs://bucket/words.model"], "for the trained model (got gs://bucket/words.model)"),
        (["VOCABULARY_PATH=text.txt/words.model"], "cannot be written: File exists."),
        (["DATA=synthetic"], "has no text to train a vocabulary on."),
        (["DATA_PATH=no/such"], "The text file 'no/such' cannot be read"),
        (["SENTENCEPIECE_MODEL=word"], "SENTENCEPIECE_MODEL takes one of 'bpe', 'unigram'"),
    ],
)
def test_bad_requests_are_one_sentence_and_write_nothing(folder, capsys, knobs, message):
    code, _, err = run(capsys, *knobs)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not list(folder.glob("**/*.model"))


@pytest.mark.parametrize("error", [UsageError("No text."), OSError(5, "gone"), KeyError("text")])
def test_an_unmeasurable_amount_is_not_a_failure(folder, capsys, monkeypatch, error):
    texts = TokensInput.texts

    def held_out_is_gone(self):
        if self.split != "train":
            raise error
        return texts(self)

    monkeypatch.setattr(TokensInput, "texts", held_out_is_gone)
    code, out, err = run(capsys)
    assert code == 0, err
    assert "Trained 40 pieces" in out
    assert "Bytes per token on held-out text are unknown: " in out
    assert "Traceback" not in out + err
    assert SentencePieceVocabulary("out/words.model").size == 40


def test_it_trains_on_a_mixture(folder, capsys):
    code, out, err = run(capsys, "DATA=mixture", 'MIXTURE=(("text:text.txt",1),("lines:text.txt",1))')
    assert code == 0, err
    assert "Trained 40 pieces" in out
    assert "held-out text" in out.lower()


def test_what_is_cut_off_leaves_nothing(folder, monkeypatch):
    def dies(source, target):
        raise KeyboardInterrupt

    experiment = resolve("tiny.StdlibTiny", KNOBS, smoke=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            train_vocab.train_vocab(experiment)
    assert [path.name for path in (folder / "out").iterdir()] == [".words.model.lock"]
    assert train_vocab.train_vocab(experiment) == 0
    assert SentencePieceVocabulary("out/words.model").size == 40


def test_of_two_commands_one_trains(folder, capsys):
    """Threads replace the commands: to locks and files they are equal."""
    codes, experiment = [], resolve("tiny.StdlibTiny", KNOBS, smoke=True)
    threads = [threading.Thread(target=lambda: codes.append(train_vocab.train_vocab(experiment))) for _ in range(2)]
    (folder / "out").mkdir()
    with locked(folder / "out" / ".words.model.lock", wait=True):
        for thread in threads:
            thread.start()
        threads[0].join(timeout=2)
        assert all(thread.is_alive() for thread in threads)
        assert not (folder / "out" / "words.model").exists()
    for thread in threads:
        thread.join(timeout=600)
    assert codes == [0, 0]
    out = capsys.readouterr().out
    assert (out.count("Trained 40 pieces"), out.count("It is kept.")) == (1, 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder whose run learned with a SentencePiece vocabulary, and that model's path."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text(TEXT * 40)
    model = sentence_piece(folder / "words.model")
    knobs = [
        *("VOCABULARY=sentencepiece", f"VOCABULARY_PATH={model}", "VOCAB_SIZE=64", f"DATA_PATH={folder / 'text.txt'}"),
        *("NUM_STEPS=4", "WARMUP_STEPS=1", "EVAL_ROWS=8", "SEQ_LEN=16", "NUM_LAYERS=1", "DEVICE_MESH_SHAPE=8,1"),
    ]
    flags = [f"--set={knob}" for knob in knobs]
    command = ["--exp=tiny.StdlibTiny", "--smoke", f"--workdir={folder / 'run'}", "--no-tensorboard", *flags]
    assert main(command) == 0
    return folder / "run", model


def test_the_run_folder_names_its_vocabulary(trained):
    workdir, model = trained
    record = json.loads((workdir / "experiment.json").read_text())["vocabulary"]
    fingerprint = SentencePieceVocabulary(str(model)).fingerprint
    assert record == {"is": f"SentencePiece '{model}'", "fingerprint": fingerprint, "is_text": True}
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert all(line["bits_per_byte"] < line["bits_per_token"] for line in lines)


def again(capsys, workdir, *flags):
    capsys.readouterr()
    code = main([f"--workdir={workdir}", *flags])
    return code, *capsys.readouterr()


SAMPLE = ("--mode=sample", "--max_new_tokens=8", "--no-stop")


def test_samples_in_words_shown_or_not(trained, capsys):
    texts = set()
    for choice in ("--stream", "--no-stream"):
        code, out, err = again(capsys, trained[0], *SAMPLE, "--prompt=the cat 日", choice)
        assert code == 0, err
        texts.add(out.partition("\n[")[0])
    assert len(texts) == 1
    assert texts.pop().startswith("the cat")


def test_an_empty_prompt_begins_after_a_documents_end(trained):
    vocabulary = SentencePieceVocabulary(str(trained[1]))
    assert prompt_ids(vocabulary, " \n", is_continuation=False) == [1]
    assert prompt_ids(vocabulary, "", is_continuation=True) == []
    assert prompt_ids(ByteVocabulary(), "", is_continuation=False) == [0]
    assert prompt_ids(ByteVocabulary(special_tokens=3), "a", is_continuation=False) == [1, 100]


def test_a_vocabulary_that_has_changed_is_refused(trained, capsys, tmp_path):
    workdir, model = trained
    content = model.read_bytes()
    moved = tmp_path / "moved.model"
    moved.write_bytes(content)
    try:
        sentence_piece(model, seed=1, vocab_size=100)
        for mode in ("sample", "validation", "train"):
            code, _, err = again(capsys, workdir, f"--mode={mode}")
            assert code == 2
            assert f"SentencePiece '{model}' has changed since the run in '{workdir}' began" in err
            assert err.count("\n") == 1
        model.unlink()
        code, _, err = again(capsys, workdir, *SAMPLE)
        assert code == 2
        assert f"The SentencePiece model '{model}' cannot be read: No such file or directory" in err
        assert err.count("\n") == 1
        code, _, err = again(capsys, workdir, *SAMPLE, f"--set=VOCABULARY_PATH={moved}")
        assert code == 0, err
    finally:
        model.write_bytes(content)


def test_a_model_with_too_few_tokens_is_refused(trained, capsys, tmp_path):
    knobs = ["VOCABULARY=sentencepiece", f"VOCABULARY_PATH={trained[1]}", "VOCAB_SIZE=59"]
    flags = [f"--set={knob}" for knob in knobs]
    code = main(["--exp=tiny.StdlibTiny", "--smoke", f"--workdir={tmp_path / 'run'}", *flags])
    message = capsys.readouterr().err
    assert code == 2
    assert "VOCAB_SIZE = 59 is smaller than the vocabulary, SentencePiece '" in message
    assert f"'{trained[1]}' (60 tokens). Set VOCAB_SIZE=60." in message
    assert not (tmp_path / "run").exists()
