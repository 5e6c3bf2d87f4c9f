"""A TokenSource of token ids written by other programs."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from layers.errors import UsageError
from tasks.inputs.token_ids.pretokenized import TokenFiles
from tasks.inputs.tokens import Tokens
from tasks.vocabularies.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredTokens:
    """A TokenSource of files of ids of `vocabulary`, whose stop token ends documents.

    Bytes of text are counted by the vocabulary only, because the text itself is not available.
    """

    source: TokenFiles
    vocabulary: Vocabulary

    def tokens(self, split: str) -> Tokens:
        """Returns the split's ids, memory-mapped.

        Raises:
          UsageError: the files cannot be read. Reading an id outside the vocabulary raises one later.
        """
        found = self.source.arrays(split)
        for array in found:
            if np.iinfo(array.ids.dtype).max < self.vocabulary.size - 1:
                raise UsageError(
                    f"{self.describe()} are {array.ids.dtype}, which cannot hold the {self.vocabulary.size:,} tokens "
                    f"of {self.vocabulary.describe()}. Set TOKEN_DTYPE=uint32, or the VOCABULARY of the ids."
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
        raise UsageError(f"The {self.describe()} have no text to train a vocabulary on.")

    def describe(self) -> str:
        return self.source.describe()
