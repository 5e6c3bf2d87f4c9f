"""Kinds of data files: token ids, JSON lines, tar shards, tensors of torch, tokenizers."""

import contextlib
import io
import json
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tasks.inputs.files.torch_tensors import load_row
from tasks.inputs.part_store import PartStore
from tasks.inputs.sources.text_files import JsonLines
from tasks.inputs.sources.webdataset_shards import WebDatasetShards
from tasks.inputs.token_ids.pretokenized import DTYPES, HEADER_BYTES, HEADERS, TokenFiles
from tasks.inputs.token_ids.token_files import StoredTokens
from tasks.inputs.tokens import Tokens
from tasks.vocabularies.subwords import Gpt2Vocabulary, HuggingFaceVocabulary, SentencePieceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary, Vocabulary
from testing.fuzz.archives import PACKERS, mutated_tar, tar_of
from testing.fuzz.kind import Files, Kind, files_in, torch_library, write_files
from testing.fuzz.mutations import mutated_bytes, mutated_files, mutated_json, mutated_json_lines

TEXT = "the cat sat on the mat\nthe dog sat on the log\ndef f(x):\n    return x + 1\n" * 4
IDS = np.frombuffer(TEXT.encode(), np.uint8).astype(np.uint16)
PART = ("part", "1")  # its name and version
SPLITS = ("train", "validation", "test")


def saved(array: np.ndarray) -> bytes:
    """Returns an array as the content of a .npy file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def token_files() -> list[Files]:
    """Returns the same ids as .npy, of nanoGPT, of llm.c, and of Megatron."""
    (magic, dtype), *_ = HEADERS.items()
    head = np.zeros(HEADER_BYTES // 4, "<i4")
    head[:3] = magic, 1, len(IDS)
    half = len(IDS) // 2
    lengths, offsets = np.array([half, len(IDS) - half], "<i4"), np.array([0, 2 * half], "<i8")
    index = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, 2, 3) + lengths.tobytes() + offsets.tobytes()
    index += np.array([0, 1, 2], "<i8").tobytes()
    return [
        {"ids.npy": saved(IDS.astype(np.int64))},
        {"ids.bin": IDS.tobytes()},
        {"ids.bin": head.tobytes() + IDS.astype(dtype).tobytes()},
        {"ids.bin": IDS.tobytes(), "ids.idx": index},
    ]


def _mutated_tokens(valid: list[Files]) -> SearchStrategy[tuple[Files, str]]:
    files = st.sampled_from(valid).flatmap(lambda files: mutated_files(files, {}))
    return st.tuples(files, st.sampled_from(("uint16", *DTYPES)))


def _read_tokens(given: tuple[Files, str], folder: Path) -> None:
    files, dtype = given
    write_files(files, folder)
    source = TokenFiles(files=f"{folder}/ids.*", dtype=dtype)
    for split in SPLITS:
        tokens = StoredTokens(source=source, vocabulary=ByteVocabulary()).tokens(split)
        tokens.read(0, len(tokens))
        tokens.begins(0, min(len(tokens), 100))
        assert len(tokens.document_ends)


def json_lines() -> bytes:
    """Returns documents as text and as token ids, one object in each line."""
    rows: list[dict[str, Any]] = [{"text": line, "n": n} for n, line in enumerate(TEXT.splitlines()[:6])]
    return "\n".join(json.dumps(row) for row in [*rows, {"text": [1, 2, 3]}]).encode()


@st.composite
def _packed_lines(draw: Any, valid: bytes) -> tuple[str, bytes]:
    ending = draw(st.sampled_from((*[""] * 5, *PACKERS)))
    packed = PACKERS[ending](draw(mutated_json_lines(valid)))
    return f".jsonl{ending}", draw(mutated_bytes(packed)) if ending and draw(st.booleans()) else packed


def _read_parts(source: Any) -> None:
    """Reads all documents, and encodes them as the token cache does."""
    vocabulary = ByteVocabulary()
    for part in source.parts(None):
        texts: Iterable[Any] = (document for document in part.read() if isinstance(document, str))
        vocabulary.encode_batch(list(texts))


def _read_json_lines(given: tuple[str, bytes], folder: Path) -> None:
    ending, content = given
    write_files({f"a{ending}": content}, folder)
    _read_parts(JsonLines(files=f"{folder}/a{ending}"))


def token_cache(folder: Path) -> Files:
    """Returns a part of a token cache."""
    with PartStore(str(folder), "cache").writer(*PART, IDS.dtype) as writer:
        for split in SPLITS:
            writer.add(split, IDS[:10], 10, 10.0)
            writer.add(split, IDS[10:30], 20, 20.0)
    return files_in(folder)


def _read_cache(files: Files, folder: Path) -> None:
    """Reads all arrays; a damaged part counts as missing, and would be built again."""
    write_files(files, folder)
    part = PartStore(str(folder), "cache").open(*PART)
    for split in part.splits.values() if part is not None else ():
        tokens = Tokens([split.ids], [split.ends], stop_id=0)
        assert len(tokens.read(0, len(tokens))) == split.tokens
        assert len(tokens.document_ends) >= split.documents


MEMBERS = {"txt": TEXT.encode(), "json": json.dumps({"text": TEXT}).encode(), "npy": saved(IDS.astype(np.int64))}


@st.composite
def _mutated_shard(draw: Any, valid: dict[str, bytes]) -> tuple[str, str, bytes]:
    member = draw(st.sampled_from(list(valid)))
    content = draw(mutated_json(valid[member])) if member == "json" and draw(st.booleans()) else valid[member]
    ending, archive = draw(mutated_tar({f"{number}.{member}": content for number in range(3)}))
    return member, ending, archive


def _read_shard(given: tuple[str, str, bytes], folder: Path) -> None:
    member, ending, archive = given
    write_files({f"a{ending}": archive}, folder)
    _read_parts(WebDatasetShards(shards=f"{folder}/a{ending}", member=member))


def torch_tensors() -> list[bytes]:
    """Returns a tensor as torch.save writes it since 1.6, with a storage that expands thousandfold, and before 1.6."""
    torch = torch_library()

    stream = io.BytesIO()
    torch.save(torch.arange(64), stream)
    with zipfile.ZipFile(io.BytesIO(stream.getvalue())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content if "/data/" not in name else content + bytes(1 << 24))
    old = io.BytesIO()
    torch.save(torch.arange(64), old, _use_new_zipfile_serialization=False)
    return [stream.getvalue(), packed.getvalue(), old.getvalue()]


def _read_tensor(content: bytes, folder: Path) -> None:
    """Reads a tensor as a member of a shard, where damaged ones are skipped, and alone, where they raise an error."""
    write_files({"a.tar": tar_of({"1.pth": content, "2.pth": content})}, folder)
    _read_parts(WebDatasetShards(shards=f"{folder}/a.tar", member="pth"))
    with contextlib.suppress(ValueError):  # a reason for the tally of skipped documents
        load_row(content)


def tokenizers(folder: Path) -> list[Files]:
    """Returns the files of a byte-level tokenizer, of a Unigram one, and of GPT-2's form."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    byte_level.train_from_iterator([TEXT], trainer)
    byte_level.model.save(str(folder))
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("\u2581", -2.0),
        *((letter, -5.0) for letter in "abcdefgh"),
    ]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=2))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.add_special_tokens(["<pad>", "</s>", "<unk>"])
    names = {"eos_token": {"content": "</s>"}, "bos_token": "<pad>"}
    ends = {"eos_token_id": [1, 2], "bos_token_id": 0}
    return [
        {"tokenizer.json": byte_level.to_str().encode(), "tokenizer_config.json": b'{"eos_token": "<|endoftext|>"}'},
        {
            "tokenizer.json": unigram.to_str().encode(),
            "tokenizer_config.json": json.dumps(names).encode(),
            "generation_config.json": json.dumps(ends).encode(),
        },
        files_in(folder),
    ]


def _mutated_tokenizers(valid: list[Files]) -> SearchStrategy[Files]:
    mutations = {".json": lambda content: mutated_json(content) | mutated_bytes(content)}
    return st.sampled_from(valid).flatmap(lambda files: mutated_files(files, mutations))


def _read_tokenizer(files: Files, folder: Path) -> None:
    write_files(files, folder)
    is_pairs = any(name in files for name in ("vocab.json", "merges.txt"))
    _use(Gpt2Vocabulary(path=str(folder)) if is_pairs else HuggingFaceVocabulary(name=str(folder)))


def _use(vocabulary: Vocabulary) -> None:
    """Calls what training and sampling call."""
    assert vocabulary.size >= 0
    assert isinstance(vocabulary.fingerprint, str)
    ids = [*vocabulary.stop_ids, vocabulary.stop_id, vocabulary.start_id, vocabulary.named_start_id]
    assert all(number is None or isinstance(number, int) for number in ids)
    assert len(vocabulary.token_bytes()) == vocabulary.size
    assert vocabulary.needed_rows <= vocabulary.size
    vocabulary.decode(vocabulary.encode(TEXT[:40]))
    vocabulary.encode_batch([TEXT[:40], "\U0001f408 \0"])


def sentence_piece(folder: Path) -> bytes:
    """Returns a SentencePiece model of 60 pieces."""
    import sentencepiece

    del folder
    stream = io.BytesIO()
    trainer = sentencepiece.SentencePieceTrainer
    trainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=stream,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return stream.getvalue()


def _read_sentence_piece(content: bytes, folder: Path) -> None:
    write_files({"a.model": content}, folder)
    _use(SentencePieceVocabulary(path=str(folder / "a.model")))


DATA_KINDS = (
    Kind("tokens", lambda _: token_files(), _mutated_tokens, _read_tokens),
    Kind("jsonl", lambda _: json_lines(), _packed_lines, _read_json_lines),
    Kind("cache", token_cache, lambda valid: mutated_files(valid, {".json": mutated_json}), _read_cache),
    Kind("tar", lambda _: MEMBERS, _mutated_shard, _read_shard),
    Kind("torch", lambda _: torch_tensors(), lambda valid: st.sampled_from(valid).flatmap(mutated_bytes), _read_tensor),
    Kind("tokenizer", tokenizers, _mutated_tokenizers, _read_tokenizer),
    Kind("sentencepiece", sentence_piece, mutated_bytes, _read_sentence_piece),
)
