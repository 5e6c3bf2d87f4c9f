"""Data sources: configs for the knobs DATA, DATA_PATH and DATASET."""

from typing import Any, Literal, get_args

import fiddle as fdl

from layers.errors import UsageError, did_you_mean
from registry.experiment import Experiment
from registry.values import Positive
from tasks.inputs.byte_text import ByteText
from tasks.inputs.datasets.enwik8 import Enwik8
from tasks.inputs.datasets.imagenet64 import ImageNet64
from tasks.inputs.mixture import ChainedInput, MixtureInput
from tasks.inputs.rows import TokensInput
from tasks.inputs.sources.functions import FromFunction
from tasks.inputs.sources.huggingface import HuggingFace
from tasks.inputs.sources.running_text import RunningText
from tasks.inputs.sources.splits import named as splits_named
from tasks.inputs.sources.text_files import JsonLines, TextFiles, TextLines
from tasks.inputs.sources.tfds import Tfds
from tasks.inputs.sources.tfrecords import TfExamples
from tasks.inputs.sources.webdataset_shards import WebDatasetShards
from tasks.inputs.token_cache import CachedDocuments
from tasks.inputs.token_ids.pretokenized import TokenFiles
from tasks.inputs.token_ids.token_files import StoredTokens
from tasks.vocabularies.vocabulary import ByteVocabulary

PaperData = Literal["enwik8", "pg19", "imagenet64"]
PAPER_DATA = get_args(PaperData)  # the data sets of Transformer-VQ
Kind = Literal[
    PaperData, "text", "lines", "files", "jsonl", "huggingface", "tfds", "tfrecord", "webdataset", "function", "tokens"
]
Data = Literal[Kind, "mixture", "seqio", "synthetic"]
FROM_FILES = {"lines": TextLines, "files": TextFiles, "jsonl": JsonLines, "tfrecord": TfExamples}
HAVE_HELD_OUT_FILES = (*FROM_FILES, "webdataset", "tokens")
HAVE_COLUMNS = ("jsonl", "huggingface", "tfds", "tfrecord", "webdataset")


class DataSources(Experiment):
    """The knobs of real data: files, folders and data sets of libraries."""

    # Data
    VOCABULARY: Literal["bytes", "sentencepiece", "huggingface", "gpt2"] = "bytes"  # kind of vocabulary
    SPECIAL_BYTES: bool = False  # three special tokens before the bytes, for all data but text
    VOCABULARY_PATH: str | None = None  # a .model file; a tokenizer.json, its folder or a hub name; GPT-2's folder
    DATA_PATH: str | None = None  # files: names, patterns, `{00..17}`, @list; None is the standard library for text
    VALIDATION_PATH: str | None = None  # files of the validation split, if not part of DATA_PATH
    TEST_PATH: str | None = None  # files of the test split, if not part of DATA_PATH
    DATASET: str | None = None  # name of a Hugging Face data set, a TFDS data set or a function
    DATASET_CONFIG: str | None = None  # the configuration of a Hugging Face data set
    DATA_SPLITS: tuple[tuple[str, str], ...] = ()  # pairs (train, validation or test; its name in DATASET)
    DATA_COLUMN: str = "text"  # the field of each example that is read
    DATA_MEMBER: str = "txt"  # file extension of the text in samples of webdataset shards
    FUNCTION_SPLITS: bool = False  # whether the function takes the name of the split as argument
    TOKEN_DTYPE: str = "uint16"  # dtype of .bin files of token ids without a header
    SPLIT_FRACTIONS: tuple[float, ...] = (0.9, 0.05, 0.05)  # train, validation and test shares of data without splits
    MIXTURE: tuple[tuple[str, float], ...] = ()  # (KIND:PLACE or KIND:PLACE#COLUMN, weight) pairs, for DATA = mixture
    ROWS: Literal["cut", "restart", "pack", "truncate"] = "cut"  # how documents become rows: see tasks.inputs.rows
    DOCUMENT_MASKS: bool = False  # restart positions in each document and restrict attention to it
    MAX_SEGMENTS: Positive | None = None  # most documents in a row of ROWS = pack, so that cuDNN computes their masks
    CACHE_DIR: str | None = None  # folder for token ids, also gs:// or s3://; None is the user's cache folder

    def vocabulary(self) -> fdl.Config:
        """Returns the config of the vocabulary."""
        raise NotImplementedError

    def token_rows(self, kind: str, place: str | None, **sizes: Any) -> fdl.Config:
        """Returns endless shuffled rows of one source. `place` replaces DATA_PATH or DATASET, as the kind requires."""
        named = {"VALIDATION_PATH": self.VALIDATION_PATH, "TEST_PATH": self.TEST_PATH}
        if (kind not in HAVE_HELD_OUT_FILES or place) and (unread := [knob for knob in named if named[knob]]):
            where = f"'{kind}:{place}' in MIXTURE" if place else f"DATA = {kind}"
            known = ", ".join(HAVE_HELD_OUT_FILES)
            raise UsageError(f"{where} does not read {unread[0]} = {named[unread[0]]}. Use it with DATA = {known}.")
        of_paper = kind in PAPER_DATA and self.ROWS == "cut"
        rows = {"rows": "restart" if of_paper else self.ROWS, "document_masks": self.DOCUMENT_MASKS}
        if self.MAX_SEGMENTS is not None:
            limit = f"MAX_SEGMENTS = {self.MAX_SEGMENTS} limits the documents that are packed into a row, and"
            if self.ROWS != "pack":
                raise UsageError(f"{limit} ROWS = {self.ROWS} packs none. Set ROWS to pack, or remove the limit.")
            if not self.DOCUMENT_MASKS:
                raise UsageError(f"{limit} DOCUMENT_MASKS = False does not separate them. Set it, or remove the limit.")
            rows["max_segments"] = self.MAX_SEGMENTS
        return fdl.Config(TokensInput, source=self.token_source(kind, place), **rows, **sizes)

    def mixture_rows(self, **sizes: Any) -> fdl.Config:
        """Returns endless rows of the sources in MIXTURE, drawn by their weights."""
        if not self.MIXTURE:
            example = 'MIXTURE=(("text:",0.7),("jsonl:more.jsonl",0.3))'
            raise UsageError(f"DATA = mixture needs sources. Set MIXTURE, for example --set={example}.")
        rows = []
        for name, _ in self.MIXTURE:
            kind, _, place = name.partition(":")
            if kind not in get_args(Kind):
                hint = did_you_mean(kind, get_args(Kind))
                raise UsageError(f"'{name}' in MIXTURE is not of the form KIND:PLACE. {hint}")
            rows.append(self.token_rows(kind, place or None, **sizes))
        weights = tuple(float(weight) for _, weight in self.MIXTURE)
        return fdl.Config(MixtureInput, sources=tuple(rows), weights=weights, seed=sizes.get("seed", 0))

    def held_out(self, config: fdl.Config, split: str, max_rows: int | None) -> fdl.Config:
        """Returns one pass over another split of the data of a config."""
        if fdl.get_callable(config) is MixtureInput:
            parts = tuple(self.held_out(source, split, max_rows) for source in config.sources)
            return fdl.Config(ChainedInput, sources=parts)
        config.split, config.shuffle, config.max_rows = split, False, max_rows
        if getattr(config, "first_row", 0):  # of a later phase
            config.first_row = 0
        return config

    def token_source(self, kind: str, place: str | None) -> fdl.Config:
        """Returns the config of a TokenSource."""
        if kind in PAPER_DATA:
            return self.paper_source(kind, place or self.DATA_PATH)
        vocabulary = self.vocabulary()
        plain = fdl.get_callable(vocabulary) is ByteVocabulary and not getattr(vocabulary, "special_tokens", 0)
        if kind == "text" and plain:
            return fdl.Config(ByteText, path=place or self.DATA_PATH, fractions=self.SPLIT_FRACTIONS)
        if kind == "tokens":
            common = {
                "dtype": self.TOKEN_DTYPE,
                "fractions": self.SPLIT_FRACTIONS,
                **self._held_out_files("files", place),
            }
            files = fdl.Config(TokenFiles, files=self._named(kind, "DATA_PATH", place), **common)
            return fdl.Config(StoredTokens, source=files, vocabulary=vocabulary)
        return fdl.Config(
            CachedDocuments,
            source=self.documents(kind, place),
            vocabulary=vocabulary,
            fractions=self.SPLIT_FRACTIONS,
            folder=self.CACHE_DIR,
        )

    def paper_source(self, kind: str, path: str | None) -> fdl.Config:
        """Returns the config of a data set of Lingle 2023: bytes, or subwords of PG-19's books."""
        if self.VOCABULARY != "bytes" and kind != "pg19":
            raise UsageError(f"VOCABULARY must be bytes with DATA = {kind} (got {self.VOCABULARY}). Remove it.")
        if kind == "enwik8":
            return fdl.Config(Enwik8, path=path)
        is_text = kind == "pg19"
        documents = fdl.Config(Tfds, name=kind, data_dir=path, column="book_text") if is_text else None
        return fdl.Config(
            CachedDocuments,
            source=documents or fdl.Config(ImageNet64, path=path),
            vocabulary=self.vocabulary(),
            stop_tokens=is_text,  # an image has no end token
            folder=self.CACHE_DIR,
        )

    def documents(self, kind: str, place: str | None) -> fdl.Config:
        """Returns the config of a DocumentSource. A place may end in #COLUMN."""
        if kind == "text":
            return fdl.Config(RunningText, path=place or self.DATA_PATH, fractions=self.SPLIT_FRACTIONS)
        column = {}
        if kind in HAVE_COLUMNS:
            place, _, named = (place or "").partition("#")
            column = {"column": named or self.DATA_COLUMN}
        if kind in FROM_FILES:
            held_out = self._held_out_files("files", place)
            return fdl.Config(FROM_FILES[kind], files=self._named(kind, "DATA_PATH", place), **held_out, **column)
        if kind == "webdataset":
            held_out = self._held_out_files("shards", place) | {"member": self.DATA_MEMBER}
            return fdl.Config(WebDatasetShards, shards=self._named(kind, "DATA_PATH", place), **held_out, **column)
        name = self._named(kind, "DATASET", place)
        if kind == "function":
            return fdl.Config(FromFunction, function=name, has_splits=self.FUNCTION_SPLITS)
        splits = {"splits": splits_named(self.DATA_SPLITS)}
        if kind == "tfds":
            return fdl.Config(Tfds, name=name, data_dir=self.DATA_PATH, **splits, **column)
        return fdl.Config(HuggingFace, dataset=name, config=self.DATASET_CONFIG, **splits, **column)

    def _held_out_files(self, what: str, place: str | None) -> dict[str, Any]:
        return {} if place else {f"validation_{what}": self.VALIDATION_PATH, f"test_{what}": self.TEST_PATH}

    def _named(self, kind: str, knob: str, place: str | None) -> str:
        named = place or getattr(self, knob)
        if not named:
            raise UsageError(f"DATA = {kind} needs {knob}. Set it: --set={knob}=...")
        return named
