"""--mode=train_vocab: trains a SentencePiece vocabulary on the training split of an experiment."""

import dataclasses
import hashlib
import io
import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layers.errors import UsageError, first_line, missing_package
from registry.build import build, config_of
from registry.experiment import Experiment, cls_key
from tasks.inputs.indexed import IndexedInput
from tasks.storage.files import write_whole
from tasks.storage.json_values import parsed
from tasks.storage.locks import locked
from tasks.vocabularies.subwords import SentencePieceVocabulary

SPECIAL_IDS: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}  # those of T5; -1: none
HELD_OUT_BYTES = 10**6  # of validation text, on which bytes per token are measured


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """Settings of a trained vocabulary, in addition to its texts."""

    model: str  # bpe or unigram
    size: int  # pieces, special ones included
    text_bytes: int  # maximum of training text, complete lines only

    def key(self, texts: str) -> dict[str, Any]:
        """Returns the record stored next to the model; `texts` is the hash of the training texts."""
        return {**dataclasses.asdict(self), "special_ids": SPECIAL_IDS, "texts": texts}


def train_vocab(experiment: Experiment) -> int:
    """Trains on the training split and writes to VOCABULARY_PATH atomically; returns the exit code.

    An existing model with the same settings and texts is kept. A second command with the same path waits for the first.

    Raises:
      UsageError: the experiment has no SentencePiece vocabulary or no text, the path contains another model or cannot
        be written, or the size does not fit the texts.
    """
    settings, path = _settings(experiment)
    source: IndexedInput = build(config_of(experiment, "train"), "train").input
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), wait=True):
            exists = path.exists()
            _check(path, settings, source) if exists else _train(path, settings, source)
    except OSError as error:
        raise UsageError(f"The vocabulary '{path}' cannot be written: {error.strerror or error}.") from error
    if exists:
        print(f"'{path}' already exists with the same settings and texts. It is kept.", flush=True)
    _show(path, experiment)
    return 0


def _settings(experiment: Experiment) -> tuple[VocabularySettings, Path]:
    knobs, name = experiment.knobs(), cls_key(type(experiment))
    if "SENTENCEPIECE_MODEL" not in knobs:
        raise UsageError(f"--mode=train_vocab needs an experiment with SENTENCEPIECE_MODEL (got {name}).")
    if knobs["VOCABULARY"] != "sentencepiece":
        raise UsageError(
            f"--mode=train_vocab needs VOCABULARY = sentencepiece (got {knobs['VOCABULARY']}). Use "
            f"--set=VOCABULARY=sentencepiece."
        )
    path, limit = knobs["VOCABULARY_PATH"], knobs["VOCABULARY_BYTES"]
    if path is None or "://" in path:
        raise UsageError(f"VOCABULARY_PATH must be a path on a local disk, for the trained model (got {path}).")
    if limit < 1:
        raise UsageError(f"VOCABULARY_BYTES must be at least 1 (got {limit}).")
    return VocabularySettings(model=knobs["SENTENCEPIECE_MODEL"], size=knobs["VOCAB_SIZE"], text_bytes=limit), Path(
        path
    ).expanduser()


class _Lines:
    """Lines of texts up to a number of bytes, blank lines excluded; counts and hashes the lines it yields."""

    def __init__(self, texts: Iterator[str], limit: int):
        self._texts, self._limit = texts, limit
        self.bytes = 0
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[str]:
        for line in itertools.chain.from_iterable(text.split("\n") for text in self._texts):
            if not line.strip():
                continue
            content = line.encode("utf-8", errors="replace")
            if self.bytes + len(content) > self._limit:
                return
            self.bytes += len(content)
            self._digest.update(content + b"\n")
            yield line

    @property
    def digest(self) -> str:
        """Hash of the lines yielded so far."""
        return self._digest.hexdigest()


def _train(path: Path, settings: VocabularySettings, source: IndexedInput) -> None:
    try:
        import sentencepiece
    except ImportError as error:
        raise missing_package("--mode=train_vocab", "sentencepiece", "sentencepiece") from error
    lines, model, began = _Lines(source.texts(), settings.text_bytes), io.BytesIO(), time.perf_counter()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=settings.model,
            vocab_size=settings.size,
            character_coverage=1.0,
            minloglevel=2,
            **SPECIAL_IDS,
        )
    except RuntimeError as error:
        raise _training_error(str(error), settings, lines) from error
    record = json.dumps(settings.key(lines.digest), indent=1) + "\n"
    # The model is written last, so that every existing model has its record.
    write_whole(_record_path(path), record)
    write_whole(path, model.getvalue())
    spent = f"{lines.bytes:,} bytes in {time.perf_counter() - began:.1f} s"
    kind = {"bpe": "byte pairs", "unigram": "unigrams"}[settings.model]
    print(f"Trained {settings.size:,} pieces ({kind}) on {spent}: '{path}'", flush=True)


def _training_error(message: str, settings: VocabularySettings, lines: _Lines) -> UsageError:
    """Returns the error for a message of SentencePiece."""
    knob = f"VOCAB_SIZE = {settings.size}"
    if most := re.search(r"Please set it to a value <= (\d+)", message):
        return UsageError(
            f"VOCAB_SIZE must be at most {most[1]} for {lines.bytes:,} bytes of text (got {settings.size})."
        )
    if least := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UsageError(
            f"VOCAB_SIZE must be at least {least[1]} for special tokens and characters of text (got {settings.size})."
        )
    if not lines.bytes:
        return UsageError(f"No line of text fits into VOCABULARY_BYTES (got {settings.text_bytes}). Increase it.")
    return UsageError(f"SentencePiece cannot train a {settings.model} model with {knob}: {first_line(message, 1000)}.")


def _check(path: Path, settings: VocabularySettings, source: IndexedInput) -> None:
    """Raises a UsageError unless the existing model was trained with these settings and texts."""
    other = f"'{path}' contains another vocabulary"
    try:
        record = parsed(_record_path(path).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{other}, without a record of its training. Set another VOCABULARY_PATH.") from error
    lines = _Lines(source.texts(), settings.text_bytes)
    for _ in lines:
        pass
    now = settings.key(lines.digest)
    differing = [name for name in now if not isinstance(record, dict) or record.get(name) != now[name]]
    if differing:
        raise UsageError(
            f"{other}, which differs in {', '.join(differing)}. Set another VOCABULARY_PATH, or delete the file."
        )


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _show(path: Path, experiment: Experiment) -> None:
    """Prints the longest pieces, and bytes per token on held-out text."""
    vocabulary = SentencePieceVocabulary(str(path))
    ids = range(vocabulary.size)
    pieces = [vocabulary.decode([i]) for i in ids[len(SPECIAL_IDS) - 1 :]]
    longest = sorted(set(pieces), key=lambda piece: (-len(piece), piece))[:8]
    print(f"Longest pieces: {' '.join(map(repr, longest))}", flush=True)
    try:
        _measure(vocabulary, experiment)
    except Exception as error:  # the model is already written
        print(f"Bytes per token on held-out text are unknown: {first_line(error)}.", flush=True)


def _measure(vocabulary: SentencePieceVocabulary, experiment: Experiment) -> None:
    """Prints the bytes per token on the validation split, if there is one."""
    inputs = build(config_of(experiment, "test"), "test").inputs
    if "validation" not in inputs:
        return
    lines = _Lines(inputs["validation"].texts(), HELD_OUT_BYTES)
    count = sum(map(len, vocabulary.encode_batch(list(lines))))
    if count:
        print(f"Held-out text: {lines.bytes / count:.3f} bytes per token ({lines.bytes:,} bytes)", flush=True)
