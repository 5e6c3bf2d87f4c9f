"""Folders of Hugging Face models: config.json, tokenizer, weights in one or several safetensors files."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment
from registry.hugging_face import families, keys
from runners.conversion.tensors import Tensor, size_in_bytes, write_safetensors
from tasks.storage.files import TEMPORARY, Place, make_folder, write_whole
from tasks.storage.json_values import parsed

CONFIG, GENERATION, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
SENTENCEPIECE, SENTENCEPIECE_CLASS = "tokenizer.model", "SentencePieceBackend"  # which reads it by the library itself
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
PATH = "VOCABULARY_PATH"
# Files of tokenizers; the first three are enough, each alone.
TOKENIZERS = ("tokenizer.json", SENTENCEPIECE, "vocab.json")
TOKENIZER_FILES = (
    *TOKENIZERS,
    *(TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja"),
    GENERATION,  # names the end token by id
)


def is_model_folder(path: str) -> bool:
    """Returns whether the path is a folder with a config.json, or that file."""
    return (Path(path) / CONFIG).is_file() or (Path(path).name == CONFIG and Path(path).is_file())


def vocabulary_settings(folder: str) -> list[str]:
    """Returns the settings of the vocabulary in a folder; those of plain token ids if it has no tokenizer."""
    has = {name for name in TOKENIZERS if (Path(folder) / name).is_file()}
    if not has:
        return ["DATA=synthetic"]
    if has == {SENTENCEPIECE} and _tokenizer_class(folder) == SENTENCEPIECE_CLASS:
        return ["VOCABULARY=sentencepiece", f"{PATH}={folder}/{SENTENCEPIECE}"]
    return ["VOCABULARY=huggingface", f"{PATH}={folder}"]


def _tokenizer_class(folder: str) -> Any:
    try:
        return parsed((Path(folder) / TOKENIZER_CONFIG).read_text()).get("tokenizer_class")
    except (OSError, ValueError, AttributeError):
        return None


def read_generation(folder: Path) -> dict[str, Any]:
    """Returns the content of generation_config.json; empty if the folder has none.

    Raises:
      UsageError: it is not a JSON object.
    """
    file = folder / GENERATION
    return keys.load(file) if file.is_file() else {}


def with_ids_of_config(folder: Path) -> dict[str, Any]:
    """Returns the content of a folder's generation_config.json with the special ids of its config.json.

    Raises:
      UsageError: a file is not a JSON object.
    """
    config, settings = keys.load(folder), read_generation(folder)
    return {name: config[name] for name in SPECIAL_IDS if config.get(name) is not None} | settings


def copy_tokenizer(source: Place, target: Place) -> None:
    """Copies the files of a tokenizer between folders; creates the target.

    Raises:
      OSError: a file cannot be read or written.
    """
    make_folder(target)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            write_whole(target / name, (source / name).read_bytes())


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[Path]:
    """Yields a folder that is renamed to `path` after the block, or removed after an error.

    Raises:
      UsageError: the path exists and is not an empty folder, or cannot be written.
    """
    target = Path(path).absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(f"'{path}' exists and is not an empty folder. Choose another --to.")
    part = target.with_name(f"{TEMPORARY[1]}{target.name}")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        part.replace(target)
    except OSError as error:
        raise UsageError(f"The model cannot be written to '{path}': {error.strerror or error}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_weights(folder: Path, tensors: Mapping[str, Tensor], dtype: str | None, shard_bytes: int) -> None:
    """Writes model.safetensors, or several files with an index if the tensors exceed `shard_bytes` together.

    Args:
      folder: an existing folder.
      tensors: the tensors by key; a tensor is in memory while it is written.
      dtype: a name of runners.conversion.tensors.FLOATS; None keeps their dtypes.
      shard_bytes: the limit of one file, which a single tensor may exceed.
    """
    shards, sizes = [dict[str, Tensor]()], [0]
    for key, tensor in tensors.items():
        size = size_in_bytes(tensor, dtype or tensor.dtype)
        if shards[-1] and sizes[-1] + size > shard_bytes:
            shards.append({})
            sizes.append(0)
        shards[-1][key] = tensor
        sizes[-1] += size
    if len(shards) == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / name, shard, dtype)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_configs(
    folder: Path, experiment: Experiment, family: families.Family, dtype: str, ids: dict[str, Any]
) -> None:
    """Writes config.json and generation_config.json, with the settings of a generation_config.json in the folder.

    Args:
      folder: an existing folder.
      experiment: the experiment.
      family: the family that can represent it.
      dtype: of the weights: bfloat16 or float32.
      ids: bos_token_id, eos_token_id and pad_token_id.
    """
    keys = family.config(experiment) | {"dtype": dtype, "torch_dtype": dtype, "use_cache": True, **ids}
    (folder / CONFIG).write_text(json.dumps(keys, indent=2) + "\n")
    settings = read_generation(folder) or {"do_sample": True}
    (folder / GENERATION).write_text(json.dumps(ids | settings, indent=2) + "\n")
