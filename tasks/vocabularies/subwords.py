"""Subword vocabularies in files: SentencePiece models, Hugging Face tokenizers, GPT-2's two files.

The dataclasses hold only names, so a config can be printed without reading files. Files are read on first use, once per
process for all copies of a vocabulary, and their content is never pickled.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from layers.errors import UsageError, missing_package
from tasks.storage.files import place
from tasks.vocabularies.tokenizer_files import Tokens, gpt2_tokens, hugging_face_tokens
from tasks.vocabularies.vocabulary import DefaultProperties, Vocabulary, fingerprint_of


class _ReadOnce(DefaultProperties):
    """Excludes file content from pickles: each process reads the files again."""

    def __getstate__(self) -> dict[str, Any]:
        instance: Any = self
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(instance)}


@dataclasses.dataclass(frozen=True)
class SentencePieceVocabulary(_ReadOnce):
    """A SentencePiece model (Kudo and Richardson 2018), as `--mode=train_vocab` and T5 write them.

    Normalization is that of the model: by default NFKC, one space for runs of white space, one leading space.
    """

    path: str | None  # the .model file

    @functools.cached_property
    def _content(self) -> bytes:
        if self.path is None:
            raise UsageError("VOCABULARY = sentencepiece needs a file. Set VOCABULARY_PATH to a .model file.")
        try:
            return place(self.path).read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(
                f"The SentencePiece model '{self.path}' cannot be read: {reason}. Train one with --mode=train_vocab."
            ) from error

    @functools.cached_property
    def _model(self) -> Any:
        try:
            return _sentence_piece(self._content)
        except (RuntimeError, OSError, UnicodeDecodeError) as error:
            raise UsageError(f"'{self.path}' is not a SentencePiece model.") from error

    @property
    def size(self) -> int:
        return self._model.get_piece_size()

    @property
    def stop_id(self) -> int | None:
        return self._model.eos_id() if self._model.eos_id() >= 0 else None

    @property
    def start_id(self) -> int | None:
        return None

    @property
    def is_text(self) -> bool:
        return True

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("sentencepiece", self._content)

    def describe(self) -> str:
        return f"SentencePiece '{self.path}'"

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        encoded = self._model.encode(list(texts), num_threads=-1)  # all cores
        return [np.array(ids, np.int32) for ids in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode([int(i) for i in ids if 0 <= i < self.size])

    def token_bytes(self) -> np.ndarray:
        return piece_bytes(self._model)


def piece_bytes(model: Any) -> np.ndarray:
    """Returns float32 (pieces,): bytes of text of each piece of a SentencePieceProcessor; "▁" is a space."""
    silent = lambda i: model.is_control(i) or model.is_unknown(i) or model.is_unused(i)
    length = lambda i: 1 if model.is_byte(i) else len(model.id_to_piece(i).replace("\u2581", " ").encode())
    return np.array([0 if silent(i) else length(i) for i in range(model.get_piece_size())], np.float32)


@functools.lru_cache(maxsize=8)
def _sentence_piece(content: bytes) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise missing_package("A SentencePiece vocabulary", "sentencepiece", "sentencepiece") from error
    if not content:
        raise RuntimeError("an empty file would load as a model without pieces")
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    piece_bytes(model)  # raises a UnicodeDecodeError for damaged pieces
    return model


class _TokenizerVocabulary(_ReadOnce):
    """Base of vocabularies that use the tokenizers library."""

    @property
    def _tokens(self) -> Tokens:
        raise NotImplementedError

    @property
    def size(self) -> int:
        return len(self._tokens.bytes_v)

    @property
    def stop_id(self) -> int | None:
        return self._tokens.stop_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._tokens.stop_ids

    @property
    def start_id(self) -> int | None:
        return self._tokens.start_id

    @property
    def named_start_id(self) -> int | None:
        return self._tokens.named_start_id

    @property
    def needed_rows(self) -> int:
        return self._tokens.needed_rows

    @property
    def is_text(self) -> bool:
        return True

    @property
    def fingerprint(self) -> str:
        return self._tokens.fingerprint

    def encode(self, text: str) -> list[int]:
        return self._tokens.ids(self._tokens.tokenizer.encode(text, add_special_tokens=False)).tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        encoded = self._tokens.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._tokens.ids(one) for one in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        known = [int(i) for i in ids if 0 <= i < self.size]
        return self._tokens.tokenizer.decode(known, skip_special_tokens=False)

    def token_bytes(self) -> np.ndarray:
        return self._tokens.bytes_v.copy()


@dataclasses.dataclass(frozen=True)
class HuggingFaceVocabulary(_TokenizerVocabulary):
    """A Hugging Face tokenizer: a `tokenizer.json`, a folder with one, or a name on the hub ("t5-base").

    A document ends with the tokenizer's eos_token, and starts with its bos_token if the tokenizer adds that to texts.
    A generated text ends with the eos_token or with any token of eos_token_id in generation_config.json.
    """

    name: str | None  # file, folder or name on the hub

    @functools.cached_property
    def _tokens(self) -> Tokens:
        if self.name is None:
            raise UsageError(
                "VOCABULARY = huggingface needs a name. Set VOCABULARY_PATH to a tokenizer.json, its folder or a name "
                "on the hub."
            )
        return hugging_face_tokens(self.name)

    def describe(self) -> str:
        return f"the tokenizer '{self.name}'"


@dataclasses.dataclass(frozen=True)
class Gpt2Vocabulary(_TokenizerVocabulary):
    """GPT-2's byte-level pairs (Radford et al. 2019, section 2.2) from `vocab.json` and `merges.txt`.

    Byte-level: decoding restores every text exactly. A document ends with <|endoftext|>, 50256 in GPT-2's own files.
    """

    path: str | None  # the folder with both, or vocab.json in the folder of merges.txt

    @functools.cached_property
    def _tokens(self) -> Tokens:
        if self.path is None:
            raise UsageError(
                "VOCABULARY = gpt2 needs its files. Set VOCABULARY_PATH to the folder with vocab.json and merges.txt."
            )
        return gpt2_tokens(self.path)

    def describe(self) -> str:
        return f"GPT-2's files in '{self.path}'"


# The type checker verifies that they implement the protocol.
_MEET: tuple[Callable[..., Vocabulary], ...] = (SentencePieceVocabulary, HuggingFaceVocabulary, Gpt2Vocabulary)
