"""Token ids that others made, as a source of rows."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from layers.errors import UsageError
from tasks.inputs.token_ids.pretokenized import TokenFiles
from tasks.inputs.tokens import Tokens
from tasks.vocabularies.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredTokens:
    """A TokenSource: files of ids, which stand for what `vocabulary` says; its stop token ends documents.

    How many bytes of text the ids stand for is counted by the vocabulary alone: the text itself is not there.
    """

    source: TokenFiles
    vocabulary: Vocabulary

    def tokens(self, split: str) -> Tokens:
        """The split's ids, memory-mapped.

        Raises:
          UsageError: the files cannot be read; or later, when one is read that the vocabulary does not have.
        """
        found = self.source.arrays(split)
        for array in found:
            if np.iinfo(array.ids.dtype).max < self.vocabulary.size - 1:
                raise UsageError(
                    f"{self.describe()} are {array.ids.dtype}, which cannot hold the {self.vocabulary.size:,} tokens "
                    f"of {self.vocabulary.describe()}: say --set=TOKEN_DTYPE=uint32, or name their VOCABULARY."
                )
        ends = [array.ends for array in found if array.ends is not None]
        return Tokens(
            [array.ids for array in found],
            ends if len(ends) == len(found) else None,
            stop_id=self.vocabulary.stop_id,
            start_id=self.vocabulary.start_id,
            stops_end=not ends,
            vocabulary_size=self.vocabulary.size,
            name=self.describe(),
        )

    def texts(self, split: str) -> Iterator[str]:
        raise UsageError(f"{self.describe()}: there is no text to learn a vocabulary from.")

    def describe(self) -> str:
        return self.source.describe()
