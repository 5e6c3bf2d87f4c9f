import importlib
import json
import re
import sys
from types import SimpleNamespace

import pytest

from layers.errors import UsageError
from registry import index
from registry.experiment import REGISTRY, register
from registry.experiments.tiny import StdlibTiny
from registry.resolve import find, load, resolve
from registry.tool import command_line


@pytest.mark.parametrize(
    "name",
    [
        "tiny.StdlibTiny",
        "registered.StdlibTiny",
        "StdlibTiny",
        "registered.tiny.StdlibTiny",
        "Stdlib-Tiny",
        "stdlib_tiny",
    ],
)
def test_spellings(name):
    assert find(name) is StdlibTiny


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("StdlibTinny", "Unknown experiment 'StdlibTinny'. Did you mean 'StdlibTiny'"),
        ("tiny.StdlibTinny", "Did you mean 'tiny.StdlibTiny'"),
        (
            "no.such.module.Name",
            "'no.such.module.Name': module 'no.such.module' is not on the Python path",
        ),
        ("", "Unknown experiment ''"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(UsageError, match=message):
        find(name)


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Writes a module of the user's and puts it on the path."""

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    sys.modules.pop("gpt", None)
    for key in [key for key in REGISTRY if key.startswith("user_")]:
        sys.modules.pop(key.rpartition(".")[0], None)
        del REGISTRY[key]


SOURCE = '''
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny

@register
class Wide(StdlibTiny):
    """Wider."""
    MODEL_DIM = 256
'''


def test_a_users_own_module(user_module):
    user_module("user_models", SOURCE)
    assert find("user_models.Wide").MODEL_DIM == 256
    assert resolve("Wide", imports=["user_models"]).MODEL_DIM == 256


def test_an_ambiguous_name_lists_the_candidates(user_module):
    user_module("user_twice", SOURCE.replace("class Wide", "class StdlibTiny"))
    find("user_twice.StdlibTiny")
    with pytest.raises(UsageError, match=r"matches tiny.StdlibTiny or user_twice.StdlibTiny"):
        find("StdlibTiny")


def test_an_import_error_names_the_users_lines(user_module):
    user_module("user_broken", "import json\n\ndef f():\n    import missing_package\n\nf()\n")
    with pytest.raises(UsageError) as caught:
        resolve("tiny.StdlibTiny", imports=["user_broken"])
    assert re.fullmatch(
        r"Importing 'user_broken' failed: ModuleNotFoundError: No module named 'missing_package' "
        r"\(\S+user_broken.py:4 in f, called at \S+user_broken.py:6\)\.",
        str(caught.value),
    )
    with pytest.raises(UsageError, match="missing_package"):
        find("user_broken.Model")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (\n", r"failed: SyntaxError: '\(' was never closed \(\S+user_broken.py:1\)\.$"),
        ("import sys\nsys.exit(3)\n", r"failed: SystemExit: 3 \(\S+user_broken.py:2\)\.$"),
        (
            "from layers.specs import P, Specs\nSpecs(a_m=P())\n",
            r"^\S+user_broken.py:2: Spec 'a_m' = P\(\) must have one entry",
        ),
    ],
)
def test_what_stops_an_import_is_one_sentence(user_module, source, message):
    user_module("user_broken", source)
    with pytest.raises(UsageError, match=message) as caught:
        find("user_broken.Model")
    assert "\n" not in str(caught.value)


BAD_CLASSES = """
@register
class Typo(StdlibTiny):
    '''A knob that no base declares.'''
    LEARNIN_RATE = 1.0

@register
class Heir(Typo):
    '''Extends a class with a mistake.'''

@register
class Silent(StdlibTiny):
    SEED = 3

@register
class Last(StdlibTiny):
    '''Is defined after the others.'''
"""


def test_a_bad_class_leaves_the_others_of_its_module(user_module):
    user_module("user_mixed", SOURCE + BAD_CLASSES)
    assert resolve("user_mixed.Last", imports=["user_mixed"]).SEED == 0
    assert find("user_mixed.Wide").MODEL_DIM == 256
    for name, bad in (("Typo", "Typo"), ("Heir", "Typo"), ("Silent", "Silent")):
        with pytest.raises(UsageError, match=f"{bad} (sets LEARNIN_RATE|needs a docstring)") as caught:
            find(f"user_mixed.{name}")
        place = re.match(r"\S+user_mixed.py:(\d+): ", str(caught.value))
        line = int(place[1]) if place else 0
        assert f"class {bad}(" in "".join((SOURCE + BAD_CLASSES).splitlines()[line - 1 : line + 1])


def test_list_shows_the_others_of_a_bad_class(user_module, capsys):
    user_module("user_mixed", SOURCE + BAD_CLASSES)
    assert command_line.main(["list", "user_mixed.*", "--import=user_mixed", "--where", "params>0", "--json"]) == 2
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out)] == ["user_mixed.Last", "user_mixed.Wide"]
    assert [re.findall("Typo sets|Silent needs a docstring", line) for line in err.splitlines()] == [
        ["Typo sets"],
        ["Silent needs a docstring"],
        ["Typo sets"],
    ]


def test_check_reports_every_failure_and_continues(user_module, capsys):
    fails = SOURCE.replace("Wide", "Fails") + "\n    def Task(self):\n        return {}['x']\n"
    user_module("user_mixed", SOURCE + BAD_CLASSES + fails)
    user_module("user_broken", SOURCE + "\nnonsense\n")
    names = [f"user_mixed.{name}" for name in ("Typo", "Fails", "Last")]
    code = command_line.main(["check", *names, "--import=user_broken", "--import=user_mixed", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert code == 2
    assert [name for name in rows if rows[name]["ok"]] == ["user_mixed.Last"]
    assert re.search(
        r"NameError: name 'nonsense' is not defined \(\S+user_broken.py:\d+\)", rows["user_broken"]["reason"]
    )
    assert re.fullmatch(
        r"user_mixed.Fails cannot be built with these settings: KeyError: 'x' \(\S+user_mixed.py:\d+ in Task\)\.",
        rows["user_mixed.Fails"]["reason"],
    )


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (
            "jnp.sum(x, axis=7), None",
            r"ValueError: axis 7 is out of bounds .*\(\S+user_mixed.py:\d+ in __call__\)\.",
        ),
        ("x", r"Sum must return \(y, state\) \(got \w+\)\."),
    ],
)
def test_a_layer_that_fails_is_one_sentence(user_module, capsys, result, reason):
    """With its line, in every command that traces it."""
    fails = f"""
class Sum(nn.Module):
    SPECS = ()
    specs: Specs

    @nn.compact
    def __call__(self, x, state=None, segment_ids=None, positions=None):
        return {result}


@mixer("failing_sum")
def failing_sum(experiment):
    return experiment.layer(Sum)


@register
class Fails(StdlibTiny):
    \"\"\"StdlibTiny with a layer that does not work.\"\"\"

    MIXER = "failing_sum"
"""
    imports = "import flax.linen as nn\nimport jax.numpy as jnp\nfrom layers.specs import Specs\n"
    user_module("user_mixed", f"{imports}from registry.templates.parts import mixer\n{SOURCE}\n{fails}")
    for verb in ("check", "weights", "show"):
        assert command_line.main([verb, "user_mixed.Fails", "--import=user_mixed"]) == 2
        assert re.search(reason, " ".join("".join(capsys.readouterr()).split()))


@pytest.mark.parametrize("module", ["tasks", "layers", "tasks.mine"])
def test_a_module_of_one_of_our_names(module):
    with pytest.raises(UsageError, match=f"Module '{module}' has the name of .*Rename your module"):
        resolve("tiny.StdlibTiny", imports=[module])


def test_our_packages_come_before_the_working_folder(command, tmp_path):
    for name in ("layers", "tasks", "launch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('hidden')\n")
    for arguments in (["registry", "list"], ["runners.main", "--help"]):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def entry_point(user_module, monkeypatch):
    """Announces a module of the user's as an installed package would."""

    def announce(name: str, source: str) -> None:
        user_module(name, source)
        points = [SimpleNamespace(name="models", value=name, dist=None)]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
        index.entries.cache_clear()

    yield announce
    index.entries.cache_clear()


def test_a_users_class_may_not_take_the_name_of_an_entry(user_module):
    user_module("gpt", SOURCE.replace("class Wide", "class GptBase"))
    line = (index.FAMILIES / "gpt.py").read_text().partition("@register\nclass GptBase(")[0].count("\n") + 1
    message = rf"Two experiments have the name 'gpt.GptBase': \S+experiments/gpt.py:{line} and \S+/gpt.py:5\. Rename"
    with pytest.raises(UsageError, match=message):
        load("gpt")
    assert find("gpt.GptBase").__module__ == "registry.experiments.gpt"
    with pytest.raises(UsageError, match=r"Two experiments .*experiments/gpt.py"):
        load("gpt")


def test_a_family_of_the_users_own_may_have_the_name_of_ours(user_module):
    user_module("zero", SOURCE)
    assert find("zero.Wide").MODEL_DIM == 256
    del REGISTRY["zero.Wide"], sys.modules["zero"]


def test_an_installed_package_may_not_take_the_name_of_an_entry(entry_point):
    entry_point("gpt", SOURCE.replace("class Wide", "class GptBase"))
    with pytest.raises(UsageError, match=r"'gpt.GptBase': \S+experiments/gpt.py:\d+ and \S+/gpt.py:\d+\. Rename"):
        index.entries()


@pytest.mark.parametrize("announced", [True, False])
def test_two_classes_of_one_name_in_a_module(user_module, entry_point, announced):
    (entry_point if announced else user_module)("user_twice", SOURCE + SOURCE)
    place = r"\S+user_twice.py"
    message = rf"Two experiments have the name 'user_twice.Wide': {place}:[56] and {place}:1[34]\. Rename"
    with pytest.raises(UsageError, match=message):
        load("user_twice")
    if announced:
        with pytest.raises(UsageError, match=message):
            index.entries()


def test_a_class_may_be_registered_again(user_module, tmp_path):
    user_module("user_models", SOURCE)
    first = find("user_models.Wide")
    again = importlib.reload(sys.modules["user_models"]).Wide
    assert find("user_models.Wide") is again is not first
    (tmp_path / "user_models.py").write_text(SOURCE.replace("256", "512").replace("@register", "# edited\n@register"))
    importlib.invalidate_caches()
    del sys.modules["user_models"]
    load("user_models")
    assert find("user_models.Wide").MODEL_DIM == 512
    register(find("user_models.Wide").derive(MODEL_DIM=64))
    assert find("user_models.Wide").MODEL_DIM == 64


def test_no_such_module():
    with pytest.raises(UsageError, match="Module 'user_nowhere' is not on the Python path"):
        resolve("tiny.StdlibTiny", imports=["user_nowhere"])


def test_the_index_read_from_source_equals_the_imported_truth():
    for key, entry in index.entries().items():
        cls = find(key)
        assert entry.base == cls.__bases__[0].__name__
        assert entry.doc == cls.__doc__.partition("\n")[0]
        assert entry.mesh == cls.DEVICE_MESH_SHAPE
    built_in = {key for key in REGISTRY if REGISTRY[key].__module__.startswith("registry.experiments.")}
    assert built_in == set(index.entries())
