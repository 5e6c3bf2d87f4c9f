"""Flags and logging that commands share."""

import argparse
import gc
import io
import logging
import subprocess
import sys

import pytest
from absl import flags
from absl import logging as absl_logging

from runners import convert, main
from runners.flags import given_module_flags, prepare_devices, run_app
from runners.options import from_flags
from tests.conftest import ROOT

# Two writes that fail, of which only the first is waited for; the other fails while its loop is shut down, or after.
FAILING_WRITES = """
import asyncio
from runners.flags import prepare_devices

async def write(turns):
    for _ in range(turns):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
    raise ValueError("No space left on device")

async def save():
    held = asyncio.ensure_future(write({turns}))
    await write(1)
    return held

{prepare}
try:
    asyncio.run(save())
except ValueError as error:
    print(error)
"""


FAILING_CALLBACK = """
import asyncio
from runners.flags import prepare_devices

async def fail():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

prepare_devices(None)
asyncio.run(fail())
"""


def _said(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)


def test_other_complaints_of_asyncio_are_shown():
    assert "ZeroDivisionError" in _said(FAILING_CALLBACK).stderr


@pytest.mark.parametrize("turns", [0, 9])
def test_writes_that_nobody_waits_for_show_no_traceback(turns):
    quiet, loud = (_said(FAILING_WRITES.format(turns=turns, prepare=p)) for p in ("prepare_devices(None)", ""))
    assert "No space left on device" in loud.stderr  # what is to be kept quiet
    assert (quiet.stdout, quiet.stderr) == ("No space left on device\n", "")


MODULE = """
from absl import flags

flags.DEFINE_string("{0}_echo", "nothing", "a text")
flags.DEFINE_multi_integer("{0}_sizes", [], "sizes")
flags.DEFINE_bool("{0}_fast", False, "a switch")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that can be imported; it and its absl flags are gone afterwards."""
    before, modules = set(flags.FLAGS), set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
    for name in [name for name in sys.modules if name not in modules and name.startswith("flagged_")]:
        del sys.modules[name]


def test_flags_of_an_imported_module_are_set_and_forgotten_by_the_next_command(module):
    name = module("flagged_one", MODULE.format("one"))
    given = ["--workdir=x", f"--import={name}", "--one_echo", "a word", "--one_sizes=1", "--one_sizes=2", "--one_fast"]
    options = main.parse([*given, "--set=SEED=1"])
    assert (options.workdir, options.set) == ("x", ["SEED=1"])
    values = flags.FLAGS
    assert (values.one_echo, values.one_sizes, values.one_fast) == ("a word", [1, 2], True)
    assert given_module_flags() == ["--one_echo=a word", "--one_fast=True", "--one_sizes=[1, 2]"]
    main.parse(["--workdir=x", f"--import={name}"])
    assert (values.one_echo, values.one_sizes, values.one_fast) == ("nothing", [], False)
    assert given_module_flags() == []


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--two_ecko=x", "Unknown flag '--two_ecko=x'. Did you mean '--two_echo'"),
        ("--two_sizes=x", "flag --two_sizes=x: invalid literal for int()"),
        ("--two_fast=x", "ignored explicit argument 'x'"),
        ("--verbosity=high", "flag --verbosity=high: invalid literal for int()"),
        ("--verbsity=1", "Unknown flag '--verbsity=1'. Did you mean '--verbosity'"),
        (
            "--NUM_LAYERS=6",
            "Unknown flag '--NUM_LAYERS=6'. Knobs and config fields are set by --set: --set=NUM_LAYERS=6.",
        ),
        ("--WEIGHTS.ffn_in_mf=P()", "--set=WEIGHTS.ffn_in_mf=P()."),
        ("--train.num_steps=5", "--set=train.num_steps=5."),
        ("--WORKDIR=x", "Did you mean '--workdir'"),
    ],
)
def test_one_sentence_about_a_flag(module, capsys, flag, message):
    name = module("flagged_two", MODULE.format("two"))
    for command in (main.main, convert.main):
        verb = ["import"] if command is convert.main else []
        assert command([*verb, "--workdir=x", f"--import={name}", flag]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert err.count("\n") == 1


def test_a_knob_whose_value_is_an_argument_of_its_own(capsys):
    assert main.main(["--workdir=x", "--NUM_LAYERS", "6"]) == 2
    assert "--set=NUM_LAYERS=6." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flags.DEFINE_string('workdir', None, '')", "The absl flag 'workdir' of {} is also a flag of this command."),
        ("flags.DEFINE_integer('three', None, '', required=True)", "Flag --three must have a value other than None."),
    ],
)
def test_flags_that_a_module_may_not_have_or_must_have(module, capsys, text, message):
    name = module(f"flagged_{len(text)}", f"from absl import flags\n{text}\n")
    assert main.main(["--exp=tiny.StdlibTiny", "--smoke", "--workdir=x", f"--import={name}"]) == 2
    assert message.format(name) in capsys.readouterr().err


def test_help_ends_well_and_lists_flags_of_modules(module, capsys):
    assert main.main(["--help"]) == 0
    assert "--verbosity=1" in capsys.readouterr().out
    name = module("flagged_four", MODULE.format("four"))
    assert main.main([f"--import={name}", "--helpfull"]) == 0
    assert "--four_echo: a text" in capsys.readouterr().out


@pytest.fixture
def logged():
    """What absl's logger writes while the test runs."""
    log, text = logging.getLogger("absl"), io.StringIO()
    handler = logging.StreamHandler(text)
    log.addHandler(handler)
    yield text
    log.removeHandler(handler)


def test_records_with_tracebacks_are_shown_unless_they_are_known(logged):
    prepare_devices(None)
    for message in (
        "Failed to run 2 Handler Commit operations or the Commit callback in background save thread, directory: x",
        "[process=0][thread=a][operation_id=1] _SignalingThread.run() raised an exception: no space",
        "of a library",
    ):
        try:
            raise OSError("No space left on device")
        except OSError:
            absl_logging.exception(message)
    assert logged.getvalue().startswith("of a library\nTraceback")
    assert logged.getvalue().count("Traceback") == 1


def test_verbosity_holds_for_one_command(logged, tmp_path):
    levels = []
    for flag in ([], ["--verbosity=0"], []):
        main.main(["--exp=tiny.StdlibTinny", f"--workdir={tmp_path}", *flag])
        levels.append(logging.getLogger("absl").getEffectiveLevel())
    assert levels == [logging.WARNING, logging.INFO, logging.WARNING]


@pytest.mark.parametrize(("flags", "step"), [([], "train"), (["--plan_step=decode"], "decode")])
def test_a_flag_with_stated_values_is_one_text(flags, step):
    options = from_flags(main.mode_module("plan").Options, main.parse(["--exp=tiny.StdlibTiny", "--mode=plan", *flags]))
    assert options.plan_step == step


def test_flags_of_all_modes_are_read_without_jax():
    """--help, an error in a flag, and the restart of the process with huge pages do not wait for its import."""
    lines = ("import sys", "from runners import main", "for mode in main.MODES: main.mode_parser(mode)")
    code = "\n".join((*lines, "sys.exit('jax' in sys.modules)"))
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_garbage_is_searched_less_often_while_a_command_runs():
    before, inside = gc.get_threshold(), []
    run = lambda options: inside.append(gc.get_threshold()) or 0
    assert run_app(lambda arguments: argparse.Namespace(), run, []) == 0
    assert inside[0][0] > before[0]
    assert gc.get_threshold() == before
