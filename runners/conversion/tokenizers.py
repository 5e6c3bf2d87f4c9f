"""Tokenizers of exported models: files from which AutoTokenizer makes the run's vocabulary."""

import json
from pathlib import Path
from typing import Any

from layers.errors import UsageError, missing_package
from runners.conversion.model_folder import (
    SENTENCEPIECE,
    SENTENCEPIECE_CLASS,
    TOKENIZER_CONFIG,
    copy_tokenizer,
    read_generation,
)
from tasks.storage.files import place, write_whole
from tasks.vocabularies.subwords import Gpt2Vocabulary, HuggingFaceVocabulary, SentencePieceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary, Vocabulary

SPECIAL = ("<pad>", "</s>", "<unk>")  # of bytes after three special tokens
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def special_ids(vocabulary: Vocabulary, folder: Path) -> dict[str, Any]:
    """Returns the special ids of the configs: those of a generation_config.json in the folder, else the vocabulary's.

    An id that neither has is None, because transformers would choose one by the model's class.
    """
    own = {"bos_token_id": vocabulary.start_id, "eos_token_id": vocabulary.stop_id, "pad_token_id": None}
    stated = read_generation(folder)
    return {name: stated.get(name, number) for name, number in own.items()}


def write_tokenizer(vocabulary: Vocabulary, folder: Path) -> None:
    """Writes the files of the vocabulary's tokenizer to an existing folder; nothing for plain token ids.

    Raises:
      UsageError: the vocabulary is of another kind, or a package is missing.
    """
    if isinstance(vocabulary, HuggingFaceVocabulary):
        _copy(str(vocabulary.name), folder)
    elif isinstance(vocabulary, SentencePieceVocabulary):
        write_whole(folder / SENTENCEPIECE, place(str(vocabulary.path)).read_bytes())
        # The other classes make a tokenizer whose normalization differs.
        _write(folder / TOKENIZER_CONFIG, {"tokenizer_class": SENTENCEPIECE_CLASS})
    elif isinstance(vocabulary, Gpt2Vocabulary):
        from tasks.vocabularies.tokenizer_files import END_OF_TEXT

        _write(folder / "tokenizer.json", _gpt2(vocabulary))
        _write(folder / TOKENIZER_CONFIG, {**FAST, "eos_token": END_OF_TEXT})
    elif isinstance(vocabulary, ByteVocabulary):
        _write(folder / "tokenizer.json", _bytes(vocabulary.special_tokens))
        _write(folder / TOKENIZER_CONFIG, {**FAST, **({"eos_token": SPECIAL[1]} if vocabulary.special_tokens else {})})
    elif vocabulary.is_text:
        raise UsageError(f"A tokenizer cannot be written for {vocabulary.describe()}. Export to a file.")


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def _copy(name: str, folder: Path) -> None:
    """Copies a tokenizer's files; saves one of the hub by transformers."""
    where = place(name)
    if where.is_dir():
        copy_tokenizer(where, folder)
    elif where.is_file():
        copy_tokenizer(where.parent, folder)
        write_whole(folder / "tokenizer.json", where.read_bytes())
    else:
        try:
            import transformers
        except ImportError as error:
            raise missing_package(f"Tokenizer '{name}'", "transformers", "hf") from error
        transformers.AutoTokenizer.from_pretrained(name, local_files_only=True).save_pretrained(folder)
    if not (folder / TOKENIZER_CONFIG).exists():
        _write(folder / TOKENIZER_CONFIG, FAST)


def _gpt2(vocabulary: Gpt2Vocabulary) -> dict[str, Any]:
    """Returns a tokenizer.json of GPT-2's pairs whose end-of-text token is special."""
    from tasks.vocabularies.tokenizer_files import END_OF_TEXT, gpt2_tokens

    content = json.loads(gpt2_tokens(str(vocabulary.path)).tokenizer.to_str())
    return content | {"added_tokens": [_special(END_OF_TEXT, vocabulary.stop_id or 0)]}


def _bytes(special: int) -> dict[str, Any]:
    """Returns a tokenizer.json with a token for each byte of UTF-8, after `special` special tokens.

    It names no end token unless there are special tokens: byte 0 has a printable name, which text may contain.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    by_byte = _names_of_bytes(ByteLevel.alphabet())
    vocab = {name: number for number, name in enumerate(SPECIAL[:special])}
    vocab |= {name: byte + special for byte, name in enumerate(by_byte)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(name, number) for number, name in enumerate(SPECIAL[:special])],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def _names_of_bytes(alphabet: list[str]) -> list[str]:
    """Returns the characters that name bytes in byte-level tokenizers (Radford et al. 2019), in the bytes' order.

    Printable characters of Latin-1 name their own byte; the other bytes have the next characters from U+0100 on.
    """
    printable = {ord(name): name for name in alphabet if ord(name) < 256}
    others = iter(sorted(name for name in alphabet if ord(name) >= 256))
    return [printable.get(byte) or next(others) for byte in range(256)]


def _special(content: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": True}
