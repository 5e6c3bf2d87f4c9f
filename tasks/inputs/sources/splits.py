"""Assignment of a source's own splits to train, validation and test."""

from collections.abc import Iterable, Mapping

from layers.errors import UsageError, did_you_mean
from tasks.inputs.byte_text import SPLITS, check_split

# Usual names of the splits in data sets; the first existing one is used.
SPELLINGS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def official(there: Iterable[str], wanted: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """Returns the source's name of each of our splits that exists.

    Args:
      there: names of the source's splits.
      wanted: our splits to the source's, from DATA_SPLITS; None uses the usual names.
      where: the source, for messages.

    Raises:
      UsageError: `wanted` has an unknown split, or no train split.
    """
    there = list(there)
    if wanted is None:
        spelled = {ours: [name for name in names if name in there] for ours, names in SPELLINGS.items()}
        return {ours: names[0] for ours, names in spelled.items() if names}
    for ours, theirs in wanted.items():
        check_split(ours)
        if theirs not in there:
            raise UsageError(f"{where} has no split '{theirs}'. {did_you_mean(theirs, there)}")
    if "train" not in wanted:
        raise UsageError(
            f"{where} has no train split in DATA_SPLITS. Use {_knob({'train': 'train', **wanted})} or another of its "
            f"splits ({', '.join(map(repr, there))})."
        )
    return dict(wanted)


def are_splits(names: Mapping[str, object]) -> bool:
    """Returns whether these of our splits are sufficient: a train split and a held-out one."""
    return "train" in names and len(names) > 1


def check_request(split: str | None, has_splits: bool, where: str) -> None:
    """Raises a UsageError unless a split is requested exactly if the source has splits."""
    if split is not None:
        check_split(split)
        if not has_splits:
            raise UsageError(f"{where} has no splits of its own (got '{split}'). Read it without a split.")
    elif has_splits:
        raise UsageError(f"{where} has splits of its own: one of {', '.join(SPLITS)} must be named.")


def pick(split: str, names: Mapping[str, str], there: Iterable[str], where: str) -> str:
    """Returns the source's name of our split; raises a UsageError with the knobs to set if it has none."""
    if split not in names:
        shown = ", ".join(repr(name) for name in there)
        held_out = [names[ours] for ours in SPLITS if ours in names and ours != "train"]
        instead = {ours: names.get(ours, held_out[0]) for ours in SPLITS}
        raise UsageError(
            f"{where} has no {split} split, only {shown}. Assign one with {_knob(instead)}, or cut all three from one "
            f"with {_knob({'train': names['train']})}."
        )
    return names[split]


def named(pairs: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Converts DATA_SPLITS to the argument `wanted` of `official`: None if it is empty.

    Raises:
      UsageError: a split is unknown, or occurs twice.
    """
    found: dict[str, str] = {}
    for ours, theirs in pairs:
        if ours in found:
            raise UsageError(f"DATA_SPLITS names two splits for '{ours}', '{found[ours]}' and '{theirs}'. Choose one.")
        found[check_split(ours)] = theirs
    return found or None


def _knob(names: Mapping[str, str]) -> str:
    """Returns the command line flag that sets these splits, quoted for a shell."""
    pairs = "".join(f'("{ours}","{theirs}"),' for ours, theirs in names.items())
    return f"--set='DATA_SPLITS=({pairs if len(names) == 1 else pairs.rstrip(',')})'"
