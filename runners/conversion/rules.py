"""Rules that map keys of other frameworks' weight files to rows of our weight table, for import and export."""

import dataclasses
import re
from collections.abc import Iterable

from runners.conversion.foreign_files import Tensors
from runners.conversion.tensors import Tensor

BLOCK = "stack/block/"  # prefix of weights that are stacked over layers


@dataclasses.dataclass(frozen=True)
class Rule:
    """A key of the foreign format and our weight table's row.

    It is per layer if the key contains `{i}`, and per expert if it contains `{e}`.
    """

    theirs: str
    ours: str  # its last letters are our dimensions: "mixer/query_mnd" has m, n and d
    axes: str | None  # their dimensions in those letters, einops notation; None: the row unchanged, all layers
    part: tuple[int, int] = (0, 1)  # index and number of parts along their dimension `p`

    @property
    def letters(self) -> str:
        """Our dimensions, without those of layers and experts."""
        letters = self.ours.rpartition("_")[2]
        return letters.replace("e", "", 1) if "{e}" in self.theirs else letters

    @property
    def axis_groups(self) -> list[str]:
        """Their dimensions: a letter each, or several in parentheses."""
        return re.findall(r"\([^)]*\)|\w", self.axes or "")


@dataclasses.dataclass(frozen=True)
class NameMap:
    """A foreign file format: rules for its keys, and its conventions."""

    name: str
    rules: tuple[Rule, ...]
    activation: str = ""  # of its models; empty if files may hold any model
    prefix: str = ""  # of every key except the head's; optional in imported files, present in exported ones
    buffers: str = r"(?!)"  # regular expression of keys that are not weights
    spellings: tuple[tuple[str, str], ...] = ()  # alternative keys: (alternative, key of the rule)
    transposed: str = r"(?!)"  # regular expression of keys whose matrices files store transposed
    complete: bool = False  # whether a file has every key
    sizes_vary: bool = False  # whether an import takes the model's sizes from the file
    writes_head: bool = False  # whether a tied head is exported as well as the embedding
    embedding: str = "wte.weight"  # plain key of the embedding
    head: str = "lm_head.weight"  # plain key of the head

    def plain(self, key: str) -> str:
        """Normalizes a key of a file to that of the rules, without prefixes of torch.compile and DDP."""
        key = key.replace("_orig_mod.", "").removeprefix("module.")
        return dict(self.spellings).get(key, key).removeprefix(self.prefix)

    def full(self, key: str) -> str:
        """Returns the key of a file for a plain key."""
        return key if key == self.head else self.prefix + key

    def turned(self, key: str, tensor: Tensor) -> Tensor:
        """Transposes the array of a plain key if the file's orientation differs from the rules' (an involution)."""
        return tensor.turned() if tensor.ndim == 2 and re.fullmatch(self.transposed, key) else tensor

    def is_buffer(self, key: str) -> bool:
        """Returns whether a plain key is a buffer, not a weight."""
        return re.fullmatch(self.buffers, key) is not None

    def count_known(self, arrays: Tensors) -> int:
        """Counts the arrays that have a rule; fused matrices must be longer along the dimension of their parts."""
        rules = {rule.theirs: rule for rule in self.rules}
        known = 0
        for name, tensor in arrays.items():
            key = self.plain(name)
            general = re.sub(r"\.\d+\.", ".{i}.", key, count=1)
            rule = rules.get(key) or rules.get(general) or rules.get(re.sub(r"\.\d+\.", ".{e}.", general, count=1))
            if rule is not None:
                known += rule.part[1] == 1 or _is_longest(rule, self.turned(key, tensor).shape)
        return known

    def count_layers(self, keys: Iterable[str]) -> int | None:
        """Counts the layers in the keys; None if no key has a layer number."""
        starts = {re.escape(rule.theirs.partition("{i}")[0]) for rule in self.rules if "{i}" in rule.theirs}
        found = [re.match(rf"(?:{'|'.join(starts)})(\d+)\.", self.plain(key)) for key in keys] if starts else []
        return max((int(match[1]) + 1 for match in found if match), default=None)


def _is_longest(rule: Rule, shape: tuple[int, ...]) -> bool:
    """Returns whether the dimension with the parts of a fused matrix is the longest one."""
    along = next(index for index, group in enumerate(rule.axis_groups) if "p" in group)
    return len(shape) != 2 or shape[along] > shape[1 - along]


def rules_of(*lines: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Returns rules; keys with `{i}` are per layer, rows separated by spaces are parts along the dimension `p`."""
    found = []
    for theirs, ours, axes in lines:
        rows, forms = ours.split(), axes.split(" | ")
        for index, row in enumerate(rows):
            path = (BLOCK if "{i}" in theirs else "") + row
            found.append(Rule(theirs, path, forms[index % len(forms)], (index, len(rows))))
    return tuple(found)
