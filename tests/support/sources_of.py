"""A source made of Python lists, and a vocabulary to go with it, for tests."""

import dataclasses

from tasks.inputs.sources.documents import DocumentSource, Part
from tasks.inputs.token_cache import CachedDocuments
from tasks.vocabularies.vocabulary import ByteVocabulary

READ = []  # names of parts that were read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lists(DocumentSource):
    """Each list of documents is a part."""

    lists: tuple
    version: str = "1"
    splits: bool = False

    @property
    def has_splits(self):
        return self.splits

    def parts(self, split):
        return [self._part(number, documents, split) for number, documents in enumerate(self.lists)]

    def _part(self, number, documents, split):
        def read():
            READ.append(number)
            yield from documents

        return Part(f"list {number} {split}", self.version, read)

    def describe(self):
        return "lists"


def cached(folder, *lists, **fields):
    """Bytes with an end token, kept in a folder."""
    source = {name: fields.pop(name) for name in ("version", "splits") if name in fields}
    vocabulary = fields.pop("vocabulary", ByteVocabulary(special_tokens=3))
    return CachedDocuments(source=Lists(lists=lists, **source), vocabulary=vocabulary, folder=str(folder), **fields)
