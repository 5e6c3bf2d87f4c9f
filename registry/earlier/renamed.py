"""Names of earlier versions: renamed knobs, modules, and classes and fields of configs.

Run folders and users' modules may be older than a renaming. Records are translated when they are read; a command or a
class that uses an old name fails with an error that gives the new one.
"""

import functools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layers.roots import FOLDER
from registry.earlier.replaced_knobs import LAYOUT_TABLES, REPLACED, advice, todays_values

KNOBS = {
    "UPDATE_LEN": "TBPTT_LEN",
    "MICROBATCHES": "GRADIENT_ACCUMULATION",
    "D_BASE": "BASE_WIDTH",
    "UNDECAYED": "NO_DECAY",
    "LOGIT_CAP": "ATTENTION_SOFTCAP",
    "TIED": "TIE_EMBEDDINGS",
    "HEAD_SLOTS": "PADDED_HEADS",
    "VOCAB_MULTIPLE": "PAD_VOCAB_TO",
}
CLASSES = {"MixedInput": "MixtureInput", "PiecesInput": "TbpttInput", "StagedInput": "LengthCurriculumInput"}
FIELDS = {
    "head_slots": "padded_heads",
    "logit_cap": "softcap",
    "microbatches": "gradient_accumulation",
    "undecayed": "no_decay",
}
MODULES = {
    "layers.activations": "layers.feed_forward.activations",
    "layers.alibi": "layers.positions.alibi",
    "layers.attention": "layers.attention.softmax",
    "layers.code_cache": "layers.attention.code_cache",
    "layers.distances": "layers.positions.relative_distance",
    "layers.exchange": "layers.collectives",
    "layers.feed_forward": "layers.feed_forward.dense",
    "layers.gated_attention": "layers.attention.gated",
    "layers.initializers": "layers.weights.initializers",
    "layers.mixture_of_experts": "layers.feed_forward.experts",
    "layers.positions": "layers.positions.embeddings",
    "layers.products": "layers.weights.products",
    "layers.relative_bias": "layers.positions.relative_bias",
    "layers.reports": "layers.auxiliary",
    "layers.routing": "layers.feed_forward.routing",
    "layers.score_functions": "layers.attention.score_functions",
    "layers.static_sgu": "layers.attention.static_sgu",
    "layers.vector_quantizer": "layers.attention.quantizer",
    "layers.vq_attention": "layers.attention.vq",
    "layers.weights.fused_products": "layers.weights.products",
    "layers.weight": "layers.weights.weight",
    "registry.experiments.data_sources": "registry.templates.data_sources",
    "registry.experiments.decoder": "registry.templates.decoder",
    "registry.experiments.gpt_lm": "registry.templates.gpt_lm",
    "registry.experiments.gshard_lm": "registry.templates.gshard_lm",
    "registry.experiments.language_data": "registry.templates.language_data",
    "registry.experiments.mu_lm": "registry.templates.mu_lm",
    "registry.experiments.training": "registry.templates.training",
    "registry.experiments.vq_lm": "registry.templates.vq_lm",
    "registry.templates.bert_lm": "registry.templates.gshard_lm",
    "registry.diff": "registry.records.diff",
    "registry.provenance": "registry.records.provenance",
    "registry.snapshot": "registry.records.snapshot",
    "tasks.adafactor": "tasks.optimizers.adafactor",
    "tasks.decoding": "tasks.decoding.generation",
    "tasks.inputs.corpus": "tasks.inputs.byte_text",
    "tasks.inputs.mixed": "tasks.inputs.mixture",
    "tasks.inputs.pieces": "tasks.inputs.tbptt_chunks",
    "tasks.inputs.seqio_input": "tasks.inputs.seqio.rows",
    "tasks.inputs.seqio_pipeline": "tasks.inputs.seqio.pipeline",
    "tasks.inputs.sources.enwik8": "tasks.inputs.datasets.enwik8",
    "tasks.inputs.sources.imagenet64": "tasks.inputs.datasets.imagenet64",
    "tasks.inputs.sources.megatron": "tasks.inputs.token_ids.megatron",
    "tasks.inputs.sources.pretokenized": "tasks.inputs.token_ids.pretokenized",
    "tasks.inputs.sources.files": "tasks.inputs.files.files",
    "tasks.inputs.sources.plain_text": "tasks.inputs.files.plain_text",
    "tasks.inputs.sources.torch_tensors": "tasks.inputs.files.torch_tensors",
    "tasks.inputs.sources.unpacking": "tasks.inputs.files.unpacking",
    "tasks.inputs.staged": "tasks.inputs.length_curriculum",
    "tasks.inputs.tf_cursor": "tasks.inputs.seqio.tf_cursor",
    "tasks.inputs.token_files": "tasks.inputs.token_ids.token_files",
    "tasks.optimizers": "tasks.optimizers.optimizer",
    "tasks.precision": "tasks.optimizers.precision",
    "tasks.quiet": "tasks.quiet_imports",
    "tasks.sampler": "tasks.decoding.sampler",
    "tasks.schedules": "tasks.optimizers.schedules",
    "tasks.seqio_catalog": "tasks.inputs.seqio.catalog",
    "tasks.seqio_library": "tasks.inputs.seqio.library",
    "tasks.seqio_tasks": "tasks.inputs.seqio.registration",
    "tasks.seqio_vocabulary": "tasks.inputs.seqio.vocabulary",
    "tasks.storage": "tasks.storage.files",
    "tasks.subwords": "tasks.vocabularies.subwords",
    "tasks.tokenizer_files": "tasks.vocabularies.tokenizer_files",
    "tasks.vocabulary": "tasks.vocabularies.vocabulary",
}


@functools.cache
def _old_module() -> re.Pattern[str]:
    """Returns a pattern of old module names; it excludes modules of current packages of such a name.

    An example is `layers.attention.vq`: `layers.attention` was a module.
    """
    patterns = []
    for old in sorted(MODULES, key=len, reverse=True):
        inside = sorted(re.escape(file.stem) for file in Path(FOLDER, *old.split(".")).glob("[!_]*.py"))
        patterns.append(re.escape(old) + (rf"(?!\.(?:{'|'.join(inside)})\b)" if inside else ""))
    return re.compile(rf"(?<![\w./])(?:{'|'.join(patterns)})(?!\w)")


def with_todays_names(text: str) -> str:
    """Returns the text of a record with current names of modules, classes and fields."""
    text = _old_module().sub(lambda match: MODULES[match[0]], text)
    others = CLASSES | FIELDS
    return re.sub(rf"\b(?:{'|'.join(others)})\b", lambda match: others[match[0]], text)


def with_todays_knobs(record: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns the record of an experiment with current knobs; reports earlier ones in its overrides on stderr.

    Args:
      record: a snapshot (registry.records.snapshot).
      place: the name of its file.
    """
    before = {KNOBS.get(str(name), str(name)): value for name, value in record["knobs"].items()}
    replacing = todays_values({name: value["value"] for name, value in before.items()})
    knobs = {name: value for name, value in before.items() if name not in REPLACED}
    if "OPTIONAL_WEIGHTS" in before:
        knobs = {name: value for name, value in knobs.items() if name not in LAYOUT_TABLES}
    for name, value in replacing.items():
        sources = (old for old, new in REPLACED.items() if name in new and old in before)
        owner = before[name]["owner"] if name in before else before[next(sources)]["owner"]
        knobs[name] = {"value": value, "owner": owner}
    overrides: list[str] = []
    for override in record.get("overrides", []):
        overrides += _todays_overrides(override, replacing)
    changed = [name for name in map(_knob_of, record.get("overrides", [])) if name in KNOBS or name in REPLACED]
    if changed:
        renamings = ", ".join(f"{name} is now {_new_name(name)}" for name in dict.fromkeys(changed))
        print(f"'{place}' was written with earlier knob names: {renamings}.", file=sys.stderr)
    return {**record, "knobs": knobs, **({"overrides": list(dict.fromkeys(overrides))} if overrides else {})}


def knob_advice(name: str) -> str | None:
    """Returns the advice for an old knob name; None for all others."""
    return f"{name} was renamed. Set {KNOBS[name]}." if name in KNOBS else advice(name)


def field_advice(name: str) -> str | None:
    """Returns the advice for an old field of a config; None for all others."""
    return f"{name} was renamed. Set {FIELDS[name]}." if name in FIELDS else None


def module_advice(error: BaseException) -> str:
    """Returns the advice for an import of a moved module; empty for other errors."""
    name = getattr(error, "name", None) if isinstance(error, ImportError) else None
    return f" {name} was moved. Import {MODULES[name]}." if name in MODULES else ""


def _knob_of(override: str) -> str:
    return re.split(r"[.=]", override, maxsplit=1)[0].strip()


def _new_name(name: str) -> str:
    return KNOBS[name] if name in KNOBS else " and ".join(REPLACED[name])


def _todays_overrides(override: str, replacing: Mapping[str, str]) -> list[str]:
    """Returns the overrides that have the effect of one of an earlier version."""
    name = _knob_of(override)
    rest = override[len(name) :]
    if name == "OPTIONAL_WEIGHTS":
        return [f"WEIGHTS{rest}"]
    name = KNOBS.get(name, name)
    if name == "NORM" and "BIASES" in replacing:  # RMS norms had no bias
        return [override, f"BIASES={replacing['BIASES']}"]
    new = REPLACED.get(name, (name,))
    plain = lambda text: text[1:-1] if text[0] in "'\"" else text
    return [f"{each}={plain(replacing[each])}" for each in new if each in replacing] or [name + rest]
