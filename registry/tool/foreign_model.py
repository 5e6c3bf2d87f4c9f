"""`registry new --from`: the entry of a model that a config.json of Hugging Face describes."""

from pathlib import Path
from typing import Any

from layers.errors import UsageError
from registry.checks import check
from registry.hugging_face.entry import equal_entries, stated
from registry.hugging_face.families import read
from registry.records.snapshot import weight_summary
from registry.tool.scaffold import knob_lines, place_of, write_class

MESH = (-1, 1)  # any number of devices, which share all weights


def write_model(source: str, name: str, folder: Path) -> dict[str, Any]:
    """Writes a class that is the model of a config.json; returns `{path, name, source, parameters, same_model}`.

    Raises:
      UsageError: the file cannot be read or represented, the model does not pass its check, or the name is not of the
        form module.Name or exists.
    """
    family, knobs = read(source)
    base = family.base_class()
    place_of(name, base.__name__, folder)
    differing = {"DEVICE_MESH_SHAPE": MESH, **stated(family, knobs)}
    experiment = base.derive(**differing)()
    try:
        check(experiment)
    except UsageError as error:
        raise UsageError(f"The model of '{source}' does not pass its check: {error}") from error
    parameters = weight_summary(experiment)["totals"]["parameters"]
    doc = f'"""{parameters:,} weights: the model of a config.json of {family.architecture}."""'
    path = write_class(base, name, f"{doc}\n\n{knob_lines(differing)}", folder)
    same = list(equal_entries(family, experiment))
    return {"path": str(path), "name": name, "source": source, "parameters": parameters, "same_model": same}
