"""--mode=inspect_data: decoded rows, lengths, padding and reading speed of an experiment's data."""

import collections
import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from layers.errors import UsageError
from registry.build import build, config_of
from registry.experiment import Experiment
from registry.pages import figures, page
from tasks.batch import Batch
from tasks.inputs.indexed import IndexedInput
from tasks.inputs.phased import PhasedInput
from tasks.inputs.rows import TokensInput
from tasks.programs import TestProgram, TrainProgram
from tasks.storage.files import Place, make_folder, write_whole
from tasks.vocabularies.vocabulary import Vocabulary

PAGE = "data.html"
ROWS_SHOWN = 4
SECONDS = 3.0  # spent on reading each split
MOST_BATCHES = 200
SHOWN_TOKENS = 160  # of a segment, decoded
BINS = 40  # of the histogram
SKEWED = 20  # a longest length so many times the median has bins of equal ratios
QUANTILES = (0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1)
HUES = 5  # of segments, in figures.css


@dataclasses.dataclass(frozen=True)
class SplitSample:
    """Statistics of some batches of a split."""

    split: str
    description: str
    batches: int | None  # in one pass; None: endless
    batches_read: int
    rows: int  # rows in them with a target
    positions: int
    targets: int  # positions whose target counts
    lengths: np.ndarray  # int (segments,): positions of each segment that was read
    documents: np.ndarray | None  # int (documents,): tokens per document of the split with stop token; None: unknown
    tokens: int  # distinct tokens among the targets
    text_bytes: float  # bytes of the decoded targets
    seconds: float
    first_rows: list[Batch]

    @property
    def efficiency(self) -> float:
        """Share of the positions whose target counts."""
        return self.targets / max(self.positions, 1)


def inspect_data(experiment: Experiment, workdir: Place) -> int:
    """Reads a sample of every split, prints a summary and writes a page; returns the exit code."""
    vocabulary: Vocabulary = build(config_of(experiment, "task").vocabulary, "task.vocabulary")
    train: TrainProgram = build(config_of(experiment, "train"), "train")
    test: TestProgram = build(config_of(experiment, "test"), "test")
    inputs = {**_by_phase(train.input), **test.inputs}
    samples = []
    for split, source in inputs.items():
        try:
            source.require_data()
        except UsageError as error:
            if split not in test.inputs:
                raise
            print(f"{split}: {error}", flush=True)
            continue
        samples.append(sample_split(split, source, vocabulary))
    _show(samples, vocabulary)
    make_folder(workdir)
    page.write_assets(workdir)
    write_whole(workdir / PAGE, _page(type(experiment).__name__, samples, vocabulary))
    print(f"Page: {workdir / PAGE}", flush=True)
    return 0


def _by_phase(source: IndexedInput) -> dict[str, IndexedInput]:
    """Returns the training input of each phase of a run; of a run without phases, its only one."""
    if not isinstance(source, PhasedInput):
        return {"train": source}
    return {f"train, phase {number}": phase for number, phase in enumerate(source.phases)}


def sample_split(split: str, source: IndexedInput, vocabulary: Vocabulary) -> SplitSample:
    """Reads batches from the first one on, until SECONDS or MOST_BATCHES is reached; returns their statistics."""
    token_bytes = vocabulary.token_bytes()
    counts: collections.Counter[str] = collections.Counter()
    lengths, is_used, first_rows = [], np.zeros(vocabulary.size, bool), []
    seconds = 0.0
    batches = source.iterator()
    while counts["read"] < MOST_BATCHES and seconds < SECONDS:
        began = time.perf_counter()
        batch = next(batches, None)
        seconds += time.perf_counter() - began
        if batch is None:
            break
        real = batch.weights > 0
        targets = batch.targets[real]
        counts.update(read=1, rows=int(real.any(axis=1).sum()), positions=real.size, targets=len(targets))
        counts["bytes"] += token_bytes[targets].sum()
        is_used[targets] = True
        lengths += [length for row in rows_of(batch) for length in segment_lengths(row)]
        first_rows += list(itertools.islice(rows_of(batch), ROWS_SHOWN - len(first_rows)))
    return SplitSample(
        split=split,
        description=source.describe(),
        batches=source.num_batches(),
        batches_read=counts["read"],
        rows=counts["rows"],
        positions=counts["positions"],
        targets=counts["targets"],
        lengths=np.array(lengths, int),
        documents=document_lengths(source),
        tokens=int(is_used.sum()),
        text_bytes=float(counts["bytes"]) * source.byte_ratio,
        seconds=seconds,
        first_rows=first_rows,
    )


def document_lengths(source: IndexedInput) -> np.ndarray | None:
    """Returns the tokens per document in the split of an input, its sources included; None if unknown."""
    if isinstance(source, TokensInput):
        tokens = source.tokens
        return np.diff(tokens.document_ends, prepend=0) if tokens.has_documents else None
    parts = getattr(source, "sources", None) or [getattr(source, "source", None)]
    by_part = [document_lengths(part) if isinstance(part, IndexedInput) else None for part in parts]
    arrays = [lengths for lengths in by_part if lengths is not None]
    return np.concatenate(arrays) if len(arrays) == len(parts) else None


def rows_of(batch: Batch) -> Any:
    """Yields the rows of a batch, each with arrays of shape (S,)."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    arrays = {name: array for name, array in fields.items() if array is not None}
    return (Batch(**{name: array[row] for name, array in arrays.items()}) for row in range(len(batch.inputs)))


def segments_of(row: Batch) -> list[np.ndarray]:
    """Returns the positions of each segment of a row, padding excluded."""
    if row.segment_ids is None:
        real = np.flatnonzero(row.real)
        return [np.arange(real[-1] + 1)] if len(real) else []
    return [np.flatnonzero(row.segment_ids == number) for number in np.unique(row.segment_ids) if number]


def segment_lengths(row: Batch) -> list[int]:
    """Returns the number of positions of each segment."""
    return [len(places) for places in segments_of(row)]


def _measures(sample: SplitSample) -> dict[str, str]:
    lengths = sample.lengths if len(sample.lengths) else np.zeros(1, int)
    documents = sample.documents if sample.documents is not None and len(sample.documents) else None
    return {
        "documents in the split": "-" if documents is None else f"{len(documents):,}",
        "document length: median": "-" if documents is None else f"{np.median(documents):,.0f}",
        "document length: maximum": "-" if documents is None else f"{documents.max():,}",
        "batches": "endless" if sample.batches is None else f"{sample.batches:,}",
        "batches read": f"{sample.batches_read:,}",
        "positions with a target": f"{sample.efficiency:.1%}",
        "segments per row": f"{len(sample.lengths) / max(sample.rows, 1):.1f}",
        "segment length: minimum": f"{lengths.min():,}",
        "segment length: median": f"{np.median(lengths):,.0f}",
        "segment length: maximum": f"{lengths.max():,}",
        "distinct tokens": f"{sample.tokens:,}",
        "bytes per token": f"{sample.text_bytes / sample.targets:.2f}" if sample.text_bytes else "-",
        "tokens per second": f"{sample.targets / sample.seconds:,.0f}" if sample.seconds else "-",
    }


def _columns(samples: Sequence[SplitSample]) -> tuple[list[str], list[list[str]]]:
    """Returns the table of statistics: its header, and a row per statistic."""
    measures = [_measures(sample) for sample in samples]
    return ["", *(sample.split for sample in samples)], [[name, *(m[name] for m in measures)] for name in measures[0]]


def _show(samples: Sequence[SplitSample], vocabulary: Vocabulary) -> None:
    console = Console(highlight=False)
    console.print(f"Tokens: {vocabulary.describe()}, {vocabulary.size:,} in total", markup=False, soft_wrap=True)
    for sample in samples:
        console.print(f"{sample.split}: {sample.description}", markup=False, soft_wrap=True)
    head, rows = _columns(samples)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in head:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for number, row in enumerate(samples[0].first_rows[:ROWS_SHOWN]):
        for places in segments_of(row)[:3]:
            text = _decoded(row, places, vocabulary)
            console.print(
                f"row {number}, positions {places[0]} to {places[-1]}: {text!r}", markup=False, soft_wrap=True
            )
    for sample in samples:
        if sample.efficiency < 0.9:
            advice = " --set=ROWS=pack packs complete documents into rows, ROWS=cut fills rows with contiguous text."
            message = f"{1 - sample.efficiency:.0%} of the positions of {sample.split} are padding."
            console.print(message + (advice if sample.documents is not None else ""), markup=False, soft_wrap=True)


def _decoded(row: Batch, places: np.ndarray, vocabulary: Vocabulary) -> str:
    """Decodes the first targets of a segment."""
    start = places[:SHOWN_TOKENS]
    return vocabulary.decode(row.targets[start].tolist()) + (" ..." if len(places) > len(start) else "")


def _page(name: str, samples: Sequence[SplitSample], vocabulary: Vocabulary) -> str:
    (head, rows), measures = _columns(samples), _measures(samples[0])
    parts = [
        f"<h1>{page.text(name)}: data</h1>",
        *(f"<p class=doc>{page.text(sample.split)}: {page.text(sample.description)}</p>" for sample in samples),
        page.cards(
            [
                ("vocabulary", f"{vocabulary.size:,} tokens"),
                *((name, measures[name]) for name in ("positions with a target", "segments per row")),
                ("tokens per second", measures["tokens per second"]),
            ]
        ),
        page.table(head, rows, head[1:]),
        _histogram(samples),
        "<h2>First rows</h2><p class=doc>Targets, colored by segment.</p>",
        *(_colored(row, vocabulary) for row in samples[0].first_rows[:ROWS_SHOWN]),
    ]
    return page.page(f"{name}: data", parts, styles=figures.STYLES, scripts=figures.SCRIPTS)


def _colored(row: Batch, vocabulary: Vocabulary) -> str:
    spans = [
        f'<span class="segment hue{number % HUES}">{page.text(vocabulary.decode(row.targets[places].tolist()))}</span>'
        for number, places in enumerate(segments_of(row))
    ]
    padding = int(np.count_nonzero(row.weights == 0))
    return f"<pre>{''.join(spans)}{f'<i> and {padding:,} positions without a target</i>' if padding else ''}</pre>"


def _unit(samples: Sequence[SplitSample]) -> str:
    """Unit of the histogram: documents if their lengths are known in every split, else segments."""
    return "segments" if any(sample.documents is None for sample in samples) else "documents"


def _histogram(samples: Sequence[SplitSample]) -> str:
    """Chart of the lengths in each split: the share of its documents or segments in bins of equal width or ratio."""
    unit = _unit(samples)
    by_split = [(sample.split, sample.lengths if unit == "segments" else sample.documents) for sample in samples]
    lengths_of = {split: lengths for split, lengths in by_split if lengths is not None and len(lengths)}
    most = max((int(lengths.max()) for lengths in lengths_of.values()), default=1)
    is_skewed = any(lengths.max() > SKEWED * np.median(lengths) for lengths in lengths_of.values())
    bins = np.geomspace(1, most + 1, BINS + 1) if is_skewed else np.linspace(0, most, min(BINS, most) + 1)
    series = []
    for number, (split, lengths) in enumerate(lengths_of.items()):
        middles, shares = (bins[:-1] + bins[1:]) / 2, np.histogram(lengths, bins)[0] / len(lengths)
        series.append(
            figures.Series(name=split, x=middles.tolist(), y=(100 * shares).tolist(), color=number, steps=True)
        )
    chart = figures.Chart(
        name="lengths",
        title=f"Lengths of {unit}",
        x=figures.Axis(title="tokens", log=is_skewed, format="~s"),
        y=figures.Axis(title=f"{unit}, %"),
        series=series,
        shape="wide",
        values=_quantiles(lengths_of),
    )
    return figures.chart(chart)


def _quantiles(lengths_of: Mapping[str, np.ndarray]) -> str:
    """Table of quantiles of the lengths, a row per split."""
    columns = [f"{share:.0%}" for share in QUANTILES]
    rows = [
        (split, *(f"{cut:,.0f}" for cut in np.quantile(lengths, QUANTILES))) for split, lengths in lengths_of.items()
    ]
    return page.table(("quantile", *columns), rows, columns)
