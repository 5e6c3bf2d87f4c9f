"""Token cache: documents are tokenized once, and their ids are stored on disk.

A cache is a local or remote folder, keyed by everything that determines its ids except the documents: format,
vocabulary, split shares and stop tokens. Each part of the source has a subfolder, keyed by the part's name and version:

    <name>-<key>/<part key>/part.json      description of the part; written last, a part without it does not exist
                           /train.ids      token ids, uint16 or uint32, little-endian
                           /train.ends     ends of the documents, int64

Parts are written to a temporary folder and renamed when complete: an interrupted build keeps its complete parts, and
partial ones are never read. Processes share the work without communication: each starts at another part and skips
existing ones. Two processes that build the same part write the same bytes.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from layers.errors import UsageError
from tasks.inputs.byte_text import SPLITS, check_fractions, check_split
from tasks.inputs.indexed import ByteCounts
from tasks.inputs.part_store import PartStore, StoredPart, StoredSplit
from tasks.inputs.sources.documents import Document, DocumentSource, Part, Skipped
from tasks.inputs.tokens import Tokens
from tasks.vocabularies.vocabulary import Vocabulary

FORMAT = 1
BATCH_CHARACTERS = 4_000_000  # characters tokenized in one call
QUIET_SECONDS = 10  # seconds between two lines of progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachedDocuments:
    """A TokenSource of the documents of `source`, tokenized once, each followed by a stop token.

    A source without splits of its own is divided by the hash of each document's content: equal documents are in the
    same split, which depends neither on the number of hosts nor on the other documents.
    """

    source: DocumentSource
    vocabulary: Vocabulary
    fractions: tuple[float, ...] = (0.9, 0.05, 0.05)  # of the documents, if the source has no splits
    stop_tokens: bool = True  # append the vocabulary's stop token to each document
    folder: str | None = None  # parent folder of caches, also gs:// or s3://; None is the user's cache folder

    def tokens(self, split: str) -> Tokens:
        """Returns the split's ids, memory-mapped; builds missing parts first.

        Raises:
          UsageError: unreadable source, unknown split, or a split without usable documents.
        """
        parts = self._parts(check_split(split))
        stored = [part.splits[split] for part in parts if split in part.splits]
        if not any(part.documents for part in stored):
            raise UsageError(
                f"The {split} split of {self.source.describe()} has no documents. Name files for it (VALIDATION_PATH, "
                f"TEST_PATH), or give it a larger share (SPLIT_FRACTIONS).{self._skips(parts)}"
            )
        documents = not self.source.is_running_text
        stop_id, start_id = self.vocabulary.stop_id, self.vocabulary.start_id
        return Tokens(
            [part.ids for part in stored],
            [part.ends for part in stored] if documents else None,
            stop_id=stop_id if documents else None,
            start_id=stop_id if start_id is None else start_id,
            stops_end=self._stops,
            byte_counts=ByteCounts(sum(part.text_bytes for part in stored), sum(part.counted_bytes for part in stored)),
        )

    def describe(self) -> str:
        return self.source.describe()

    def texts(self, split: str) -> Iterator[str]:
        """Yields the documents of a split as text, from the source itself.

        Raises:
          UsageError: the documents are token ids.
        """
        for part in self.source.parts(split if self.source.has_splits else None):
            for document in part.read():
                if isinstance(document, np.ndarray):
                    raise UsageError(f"{self.source.describe()} holds token ids, not text.")
                if isinstance(document, str) and (self.source.has_splits or self._split_of(document) == split):
                    yield document

    @functools.cached_property
    def store(self) -> PartStore:
        """The storage of this cache."""
        check_fractions(self.fractions)
        if self._stops and self.vocabulary.stop_id is None:
            raise UsageError(f"The vocabulary of {self.source.describe()} has no stop token to end documents with.")
        made_by = {
            "format": FORMAT,
            "vocabulary": self.vocabulary.fingerprint,
            "fractions": None if self.source.has_splits else list(self.fractions),
            "stop_tokens": self._stops,
        }
        key = hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()[:12]
        return PartStore(self.folder, f"{type(self.source).__name__.lower()}-{key}")

    @property
    def _stops(self) -> bool:
        """Whether each document is followed by a stop token."""
        return self.stop_tokens and not self.source.is_running_text

    def _parts(self, split: str) -> list[StoredPart]:
        """Returns the parts that hold a split, in the source's order; builds missing ones."""
        own = split if self.source.has_splits else None
        parts = [dataclasses.replace(part, version=f"{part.version}\n{own}") for part in self.source.parts(own)]
        found = {part.name: self.store.open(part.name, part.version) for part in parts}
        missing = [part for part in parts if found[part.name] is None]
        if missing:
            for part in self._mine_first(missing):
                # Another process may have built it in the meantime.
                found[part.name] = self.store.open(part.name, part.version) or self._build(part, split)
        opened = [part for part in (found[part.name] for part in parts) if part is not None]
        if missing:
            print(f"Tokenized {self.source.describe()}: {self._count(opened)}.{self._skips(opened)}", flush=True)
        return opened

    def _mine_first(self, parts: list[Part]) -> Iterator[Part]:
        """Yields all parts, starting at a different one in each process."""
        begin = jax.process_index() * len(parts) // jax.process_count()
        printed_at = time.monotonic()
        for done, part in enumerate(parts[begin:] + parts[:begin]):
            if done == 0 or time.monotonic() - printed_at > QUIET_SECONDS:
                print(f"Tokenizing {part.name} ({done + 1} of {len(parts)}) into {self.store.place} ...", flush=True)
                printed_at = time.monotonic()
            yield part

    def _build(self, part: Part, split: str) -> StoredPart:
        writer = self.store.writer(part.name, part.version, self._dtype)
        skipped: collections.Counter[str] = collections.Counter()
        with writer:
            for batch in _batches(part.read(), skipped):
                for document, ids in zip(batch, self._encoded(batch), strict=True):
                    if isinstance(document, np.ndarray):
                        self._check_ids(document, part)
                    elif self._stops and np.any(ids[:-1] == self.vocabulary.stop_id):
                        skipped["holding the stop token"] += 1
                        continue
                    text_bytes = len(document.encode()) if isinstance(document, str) else None
                    counted = float(self._token_bytes[ids].sum())
                    into = split if self.source.has_splits else self._split_of(document)
                    writer.add(into, ids.astype(self._dtype), counted if text_bytes is None else text_bytes, counted)
            writer.skipped = dict(skipped)
        made = self.store.open(part.name, part.version)
        if made is None:
            raise UsageError(
                f"The cache '{self.store.place}' does not keep the files written to it. Set another CACHE_DIR."
            )
        return made

    def _encoded(self, batch: list[Any]) -> list[np.ndarray]:
        texts = iter(self.vocabulary.encode_batch([x for x in batch if isinstance(x, str)]))
        found = []
        for document in batch:
            ids = np.asarray(next(texts) if isinstance(document, str) else document)
            stopped = isinstance(document, np.ndarray) and len(ids) and ids[-1] == self.vocabulary.stop_id
            if self._stops and not stopped:
                ids = np.append(ids.astype(np.int64), self.vocabulary.stop_id or 0)
            found.append(ids)
        return found

    def _check_ids(self, ids: np.ndarray, part: Part) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary.size:
            wrong = int(ids.max()) if ids.max() >= self.vocabulary.size else int(ids.min())
            raise UsageError(
                f"{part.name} has the token {wrong}, but the vocabulary has tokens 0 to "
                f"{self.vocabulary.size - 1}. Set the VOCABULARY that the ids were made with."
            )

    def _split_of(self, document: Document) -> str:
        content = document.encode() if isinstance(document, str) else np.asarray(document, "<i4").tobytes()
        share = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") / 2**64
        train, validation, _ = self.fractions
        return SPLITS[0] if share < train else SPLITS[1] if share < train + validation else SPLITS[2]

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype("<u2" if self.vocabulary.size <= 2**16 else "<u4")

    @functools.cached_property
    def _token_bytes(self) -> np.ndarray:
        return self.vocabulary.token_bytes()

    def _count(self, parts: list[StoredPart]) -> str:
        splits: list[StoredSplit] = [split for part in parts for split in part.splits.values()]
        return f"{sum(s.documents for s in splits):,} documents, {sum(s.tokens for s in splits):,} tokens"

    def _skips(self, parts: list[StoredPart]) -> str:
        reasons: collections.Counter[str] = collections.Counter()
        for part in parts:
            reasons.update(part.skipped)
        if not reasons:
            return ""
        listed = ", ".join(f"{count:,} for {reason}" for reason, count in reasons.most_common())
        return f" Skipped {reasons.total():,} documents: {listed}."


def _batches(documents: Iterator[Document], skipped: collections.Counter[str]) -> Iterator[list[Any]]:
    """Yields usable documents in batches of about `BATCH_CHARACTERS`; counts the others in `skipped` by reason."""
    batch, size = [], 0
    for document in documents:
        if isinstance(document, Skipped):
            skipped[document.reason] += 1
            continue
        batch.append(document)
        size += len(document)
        if size > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
