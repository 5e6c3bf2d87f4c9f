"""Which of a source's own splits train, validate and test."""

from collections.abc import Iterable, Mapping

from layers.errors import UsageError, did_you_mean
from tasks.inputs.byte_text import SPLITS, check_split

# What data sets call the three; the first that is there is taken.
SPELLINGS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def official(there: Iterable[str], wanted: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """For each of our splits that there is, what the source calls it.

    Args:
      there: the names of the source's splits.
      wanted: our splits to theirs, as the user says; None goes by the usual names.
      where: the source, for messages.

    Raises:
      UsageError: `wanted` has a split that is none of ours, or of theirs.
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
            f"DATA_SPLITS names splits of {where}, and none that trains: say {_knob({'train': 'train', **wanted})} or "
            f"what it calls it ({', '.join(map(repr, there))})."
        )
    return dict(wanted)


def are_splits(names: Mapping[str, object]) -> bool:
    """Whether a source with these of our splits has splits at all: something to train on and something held out."""
    return "train" in names and len(names) > 1


def check_request(split: str | None, has_splits: bool, where: str) -> None:
    """Raises a UsageError where a split is asked of a source without, or none of one with splits."""
    if split is not None:
        check_split(split)
        if not has_splits:
            raise UsageError(f"{where} has no splits of its own, so there is no '{split}' to read by name.")
    elif has_splits:
        raise UsageError(f"{where} has splits of its own: one of {', '.join(SPLITS)} must be named.")


def pick(split: str, names: Mapping[str, str], there: Iterable[str], where: str) -> str:
    """What the source calls our split; a UsageError that shows the way out where it has none."""
    if split not in names:
        shown = ", ".join(repr(name) for name in there)
        held_out = [names[ours] for ours in SPLITS if ours in names and ours != "train"]
        instead = {ours: names.get(ours, held_out[0]) for ours in SPLITS}
        raise UsageError(
            f"{where} has no {split} split, only {shown}: say what stands for it, {_knob(instead)}, or cut all three "
            f"from one, {_knob({'train': names['train']})}."
        )
    return names[split]


def named(pairs: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """DATA_SPLITS as what `official` wants: None where it names nothing.

    Raises:
      UsageError: it names one of ours twice, or none of ours.
    """
    found: dict[str, str] = {}
    for ours, theirs in pairs:
        if ours in found:
            raise UsageError(f"DATA_SPLITS names two splits for '{ours}', '{found[ours]}' and '{theirs}': choose one.")
        found[check_split(ours)] = theirs
    return found or None


def _knob(names: Mapping[str, str]) -> str:
    """The flag that names these splits, for a shell."""
    pairs = "".join(f'("{ours}","{theirs}"),' for ours, theirs in names.items())
    return f"--set='DATA_SPLITS=({pairs if len(names) == 1 else pairs.rstrip(',')})'"
