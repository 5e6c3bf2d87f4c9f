"""Tokenizers of the Rust library `tokenizers`, loaded from files, folders or the hub."""

import dataclasses
import functools
import importlib
import logging
import os
import re
from typing import Any

import numpy as np

from layers.errors import UsageError, first_line, missing_package
from tasks.storage.files import Place, place
from tasks.storage.json_values import parsed
from tasks.vocabularies.vocabulary import fingerprint_of

END_OF_TEXT = "<|endoftext|>"
# End-of-document tokens to look for if the files of a tokenizer do not name its eos_token.
USUAL_ENDS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
NAMES_OF_TOKENS, GENERATION = ("tokenizer_config.json", "special_tokens_map.json"), "generation_config.json"
HUB_NAME = r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"  # each part of NAME or OWNER/NAME
HUB_SECONDS = 10  # after which the hub counts as unreachable
GPT2_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))  # Hugging Face's names, and OpenAI's


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """A loaded tokenizer and the properties derived from it."""

    tokenizer: Any  # a tokenizers.Tokenizer
    stop_id: int | None
    bytes_v: np.ndarray  # float32 (size,): bytes of text that each token represents
    fingerprint: str
    forbidden: np.ndarray | None = None  # int32 (N,): special tokens that the model may find in plain text
    unknown_id: int | None = None  # replacement of forbidden tokens
    start_id: int | None = None  # token that the tokenizer puts before a text
    other_ends: tuple[int, ...] = ()  # tokens other than stop_id that end a generated text
    named_start_id: int | None = None  # token that the files name as bos_token

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of all tokens that end a generated text, `stop_id` first."""
        return () if self.stop_id is None else (self.stop_id, *self.other_ends)

    @property
    def needed_rows(self) -> int:
        """One more than the largest id of a token that texts, starts or ends use."""
        used = (*np.flatnonzero(self.bytes_v).tolist(), *self.stop_ids, self.start_id, self.unknown_id)
        return 1 + max((number for number in used if number is not None), default=-1)

    def ids(self, encoding: Any) -> np.ndarray:
        """Returns the ids, int32 (N,), of an encoding, with forbidden tokens replaced."""
        ids = np.array(encoding.ids, np.int32)
        if self.forbidden is not None and self.unknown_id is not None:
            ids[np.isin(ids, self.forbidden)] = self.unknown_id
        return ids


def hugging_face_tokens(name: str) -> Tokens:
    """Loads the tokenizer from a file, a folder or the hub.

    Raises:
      UsageError: it cannot be read, or the Rust library does not support its form.
    """
    where = place(name)
    try:
        folder = where if where.is_dir() else where.parent
        file = folder / "tokenizer.json" if where.is_dir() else where
        if not file.is_file():
            if not where.is_dir() and not _may_be_on_hub(name):
                raise UsageError(f"The tokenizer '{name}' cannot be read: no such file or folder.")
            return _by_transformers(name, _generation_ends(folder) if where.is_dir() else None)
        named = (_end_in(folder), _generation_ends(folder), _named_start(folder))
        return _from_json(name, file.read_text(), *named)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise UsageError(f"The tokenizer '{name}' cannot be read: {reason}.") from error


def gpt2_tokens(path: str) -> Tokens:
    """Loads GPT-2's byte-level pairs from a folder, or from the vocabulary file and the merges file in its folder.

    Raises:
      UsageError: a file is missing or is not in GPT-2's format, or the vocabulary has no <|endoftext|>.
    """
    where = place(path)
    if not where.exists() and where.name not in {name for pair in GPT2_FILES for name in pair}:
        raise UsageError(
            f"GPT-2's vocabulary '{path}' cannot be read: no such folder. Set VOCABULARY_PATH to the folder "
            f"with vocab.json and merges.txt."
        )
    if where.is_dir():
        pairs = [(where / vocabulary, where / merges) for vocabulary, merges in GPT2_FILES]
    else:
        merges = dict(GPT2_FILES).get(where.name, "merges.txt")
        pairs = [(where, where.parent / merges)]
    found = next((pair for pair in pairs if pair[0].exists() and pair[1].exists()), None)
    if found is None:
        folder, needed = pairs[0][0].parent, [file.name for file in pairs[0]]
        missing = [file.name for file in pairs[0] if not file.exists()]
        raise UsageError(
            f"GPT-2's vocabulary needs {needed[0]} and {needed[1]}, but '{folder}' has no {' and no '.join(missing)}."
        )
    try:
        return _byte_pairs(*(file.read_text() for file in found))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"GPT-2's vocabulary '{path}' cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # the library raises bare exceptions for files of other formats
        names = " and ".join(f"'{file}'" for file in found)
        raise UsageError(f"{names} are not in the format of GPT-2's vocabulary: {first_line(error, 120)}.") from error


@functools.lru_cache(maxsize=8)
def _byte_pairs(vocabulary: str, merges: str) -> Tokens:
    library = _library()
    ids = parsed(vocabulary)
    lines = merges.splitlines()
    lines = lines[1:] if lines and lines[0].startswith("#version") else lines
    model = library.models.BPE(vocab=ids, merges=[tuple(line.split(" ")) for line in lines if line])
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    if END_OF_TEXT not in ids:
        raise UsageError(f"The vocabulary has {len(ids):,} tokens, but no {END_OF_TEXT} to end documents.")
    counts = np.zeros(max(ids.values()) + 1, np.float32)
    for token, number in ids.items():
        counts[number] = len(token)  # one character for each byte
    counts[ids[END_OF_TEXT]] = 0
    return Tokens(tokenizer, ids[END_OF_TEXT], counts, fingerprint_of("gpt2", vocabulary, merges))


def _from_json(name: str, text: str, end: str | int | None, ends: tuple[int, ...], start: str | None) -> Tokens:
    library = _library()
    try:
        return _parsed(text, end, ends, start)
    except Exception as error:  # the library raises bare exceptions
        if isinstance(error, UsageError):
            raise
        known = f"tokenizers {library.__version__}"
        raise UsageError(f"'{name}' is not a tokenizer that {known} can read: {first_line(error, 120)}.") from error


@functools.lru_cache(maxsize=8)
def _parsed(text: str, end: str | int | None, ends: tuple[int, ...], start: str | None) -> Tokens:
    """Builds a tokenizer.

    Args:
      text: content of tokenizer.json.
      end: the token that ends a document; None looks for the usual ones.
      ends: ids of tokens that end a generated text.
      start: the bos_token that the files name.
    """
    library = _library()
    tokenizer = library.Tokenizer.from_str(text)
    content = parsed(text)
    # Strings of special tokens in text are plain text: a document cannot contain an end-of-document token.
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if (content.get("decoder") or {}).get("type") == "WordPiece":
        # No clean-up: it would remove spaces of text that is already printed.
        tokenizer.decoder = library.decoders.WordPiece(prefix=content["decoder"]["prefix"], cleanup=False)
    stop_id = _id_of(tokenizer, end)
    start_id = _start_in(tokenizer, content)
    others = tuple(number for number in ends if number != stop_id and tokenizer.id_to_token(number) is not None)
    more = () if start_id is None else (str(start_id),)
    if stop_id is not None and others:
        more += (f"ends {sorted(others)}",)
    read = Tokens(
        tokenizer,
        stop_id,
        _bytes(tokenizer, content),
        fingerprint_of("huggingface", text, str(stop_id), *more),
        start_id=start_id,
        unknown_id=_unknown_in(tokenizer, content["model"]),
        other_ends=others,
        named_start_id=None if start is None else tokenizer.token_to_id(start),
    )
    if content["model"]["type"] == "Unigram":
        # Unigram models have special tokens among their pieces and find them in plain text.
        special = [token["id"] for token in content.get("added_tokens") or () if token["special"]]
        return dataclasses.replace(read, forbidden=np.array(special))
    return read


def _id_of(tokenizer: Any, end: str | int | None) -> int | None:
    """Returns the id of an end-of-document token; None if the tokenizer lacks it."""
    if isinstance(end, int):
        return end if tokenizer.id_to_token(end) is not None else None
    ends = USUAL_ENDS if end is None else (end,)
    return next((number for token in ends if (number := tokenizer.token_to_id(token)) is not None), None)


def _unknown_in(tokenizer: Any, model: dict[str, Any]) -> int | None:
    """Returns the id of the token of unknown text; None if the model lacks it."""
    token = model.get("unk_token")
    return model.get("unk_id") if token is None else tokenizer.token_to_id(token)


def _start_in(tokenizer: Any, content: dict[str, Any]) -> int | None:
    """Returns the special token that the tokenizer puts before each text, such as Llama's <s>; None for no token.

    Tokenizers of encoders, which put a token at the end too, have none.
    """
    if content.get("post_processor") is None:
        return None
    plain, marked = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    return marked[0] if len(marked) == len(plain) + 1 and marked[1:] == plain else None


def _bytes(tokenizer: Any, content: dict[str, Any]) -> np.ndarray:
    """Returns the bytes of text of each token, by the conventions that the tokenizer's JSON names."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    added = {token["content"]: token["special"] for token in content.get("added_tokens") or ()}
    model, parts = content["model"], _types(content.get("decoder")) | _types(content.get("pre_tokenizer"))
    unknown = model.get("unk_token")
    if unknown is None and model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    prefix = model.get("continuing_subword_prefix") or ""
    counts = np.zeros(max(ids.values()) + 1, np.float32)
    for token, number in ids.items():
        if added.get(token) or token == unknown:
            continue
        if token in added:
            counts[number] = len(token.encode())
        elif "ByteLevel" in parts:
            counts[number] = len(token)  # one character for each byte
        elif "ByteFallback" in parts and len(token) == 6 and token.startswith("<0x"):
            counts[number] = 1
        elif model["type"] == "WordPiece":
            is_continuation = token.startswith(prefix)  # other tokens follow a space
            counts[number] = len(token.removeprefix(prefix).encode()) + (0 if is_continuation else 1)
        else:
            ending = model.get("end_of_word_suffix") or ""
            counts[number] = len((token.replace(ending, " ") if ending else token).replace("\u2581", " ").encode())
    return counts


def _types(part: Any) -> set[str]:
    """Returns all types named in a part of a tokenizer's JSON."""
    if isinstance(part, dict):
        return {part["type"]}.union(*map(_types, part.values())) if "type" in part else set()
    return set().union(*map(_types, part)) if isinstance(part, list) else set()


def _json_in(folder: Place, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file; empty if it cannot be read or is not a dictionary."""
    try:
        content = parsed((folder / name).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _end_in(folder: Place) -> str | int | None:
    """Returns the end-of-document token that the files in the folder of a tokenizer.json name: its text or its id."""
    for name in (*NAMES_OF_TOKENS, GENERATION):
        content = _json_in(folder, name)
        if (token := _token(content.get("eos_token", content.get("eos_token_id")))) is not None:
            return token
    return None


def _token(value: Any) -> str | int | None:
    """Returns the text or id of a token: itself, the first of several, or the content of an object; None for others."""
    value = value[0] if isinstance(value, list) and value else value  # a model may stop at several
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _generation_ends(folder: Place) -> tuple[int, ...]:
    """Returns the ids at which transformers ends a generated text, in the order of generation_config.json."""
    ends = _json_in(folder, GENERATION).get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    return tuple(dict.fromkeys(number for number in ends if isinstance(number, int) and number >= 0))


def _named_start(folder: Place) -> str | None:
    """Returns the text of the bos_token that the files in the folder of a tokenizer.json name; None for no token."""
    for name in NAMES_OF_TOKENS:
        if isinstance(token := _token(_json_in(folder, name).get("bos_token")), str):
            return token
    return None


def _may_be_on_hub(name: str) -> bool:
    """Returns whether a name that is not a local path has the form NAME or OWNER/NAME of the hub."""
    parts = name.split("/")
    return len(parts) <= 2 and not name.endswith(".json") and all(re.fullmatch(HUB_NAME, part) for part in parts)


@functools.lru_cache(maxsize=8)
def _by_transformers(name: str, ends: tuple[int, ...] | None) -> Tokens:
    """Loads a tokenizer from the hub, or from a folder whose files transformers can convert.

    Args:
      name: the folder, or the name on the hub.
      ends: ids that end a generated text, from the folder; None for a name on the hub.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # else: warnings about libraries that are not installed
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # else: a warning per retry without a network
    try:
        import transformers
    except ImportError as error:
        raise missing_package(f"Tokenizer '{name}'", "transformers", "hf") from error
    load = transformers.AutoTokenizer.from_pretrained
    try:
        try:
            found = load(name, local_files_only=True)
        except (OSError, ValueError):
            if ends is not None:
                raise
            _require_hub(name)
            found = load(name)
    except Exception as error:  # any error of the hub, the network or third-party files
        if ends is not None:
            raise UsageError(
                f"The folder '{name}' has no tokenizer.json and no other tokenizer files that transformers can read. "
                f"Set VOCABULARY_PATH to a folder written by tokenizer.save_pretrained()."
            ) from error
        raise UsageError(
            f"The tokenizer '{name}' is neither a local path nor on the hub or in its local cache: "
            f"{first_line(error, 120)}. Correct VOCABULARY_PATH."
        ) from error
    if not getattr(found, "is_fast", False):
        raise UsageError(f"The tokenizer '{name}' has no fast form (tokenizer.json), the only supported one.")
    return _from_json(name, found.backend_tokenizer.to_str(), found.eos_token, ends or (), found.bos_token)


def _require_hub(name: str) -> None:
    """Raises the hub's error if it cannot be reached or lacks the name, in one request without retries."""
    import huggingface_hub

    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_SECONDS)
    except huggingface_hub.errors.HfHubHTTPError as error:  # the hub answers: other errors may not concern the files
        is_gated = isinstance(error, huggingface_hub.errors.GatedRepoError)
        if isinstance(error, huggingface_hub.errors.RepositoryNotFoundError) and not is_gated:
            raise


def _library() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        raise missing_package("A tokenizer file", "tokenizers", "hf") from error
