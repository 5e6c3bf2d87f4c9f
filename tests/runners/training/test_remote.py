"""Run folders on object stores: fake stores on this machine, used through the real packages."""

import json
import signal
import subprocess
import sys
import time

import fsspec
import pytest

from layers.errors import UsageError
from registry.runs.state import is_in_use
from runners import main
from runners.training.checkpoints import Checkpoints
from tasks.storage import lease
from tasks.storage.files import move_folder, place, write_whole
from tasks.storage.jsonl import append_line, read_lines
from testing import launches, object_stores
from tests.support import stores

pytestmark = pytest.mark.slow

FLAGS = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard"]
FLAGS += [f"--set={each}" for each in ("NUM_STEPS=6", "SAVE_EVERY=2", "LOG_EVERY=1", "EVAL_EVERY=3", "DROPOUT=0.1")]
# Trains, and is killed as soon as the checkpoint of step 4 is complete.
KILLED = """
import os, signal, sys
from runners import main
from runners.training import checkpoints
save = checkpoints.Checkpoints.save
def save_and_die(self, step, *rest, **options):
    save(self, step, *rest, **options)
    if step == 4:
        self._manager.wait_until_finished()
        os.kill(os.getpid(), signal.SIGKILL)
checkpoints.Checkpoints.save = save_and_die
main.main(sys.argv[1:])
"""
# Holds a folder, and renews often.
HOLDER = """
import sys, time
from tasks.storage import lease
from tasks.storage.files import place
lease.RENEW_SECONDS = 0.2
with lease.held(place(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module", params=["gs", "s3"])
def bucket(request):
    with stores.standing(request.param) as name:
        yield name


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The folder of an undisturbed run on this machine's disk."""
    folder = tmp_path_factory.mktemp("calm")
    assert main.main([*FLAGS, f"--workdir={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def killed(bucket):
    """The folder of a run on the store that was killed after step 4, and resumed."""
    folder = f"{bucket}/runs/killed"
    first = subprocess.run(
        [sys.executable, "-c", KILLED, *FLAGS, f"--workdir={folder}"], capture_output=True, text=True
    )
    assert first.returncode == -signal.SIGKILL, first.stderr
    steps = [line["step"] for line in launches.metrics(place(folder)) if line["split"] == "train"]
    assert steps == [1, 2, 3, 4]
    assert main.main([*FLAGS, f"--workdir={folder}"]) == 0
    return folder


def checksums(folder, step=6):
    return json.loads((folder / "checkpoints" / str(step) / "extra" / "metadata").read_text())["checksums"]


def test_killed_it_ends_in_the_bits_of_a_run_on_disk(killed, calm):
    assert launches.metrics(place(killed)) == launches.metrics(calm)
    assert checksums(place(killed)) == checksums(calm)
    assert {path.name for path in place(killed).iterdir()} >= {"experiment.json", "weights.txt", "report.html"}


def test_sampling_and_a_report_with_the_sample(killed, capsys):
    assert main.main([f"--workdir={killed}", "--mode=sample", "--prompt=def ", "--max_new_tokens=4"]) == 0
    (file,) = (place(killed) / "samples").iterdir()
    assert file.read_text().strip() in capsys.readouterr().out
    assert "Latest sample" in (place(killed) / "report.html").read_text()


def test_a_damaged_checkpoint_is_passed_over_and_made_again(killed, calm, capsys):
    state = place(killed) / "checkpoints" / "6" / "state"
    for file in (state / "d").iterdir():
        file.write_bytes(b"damaged")
    assert main.main([*FLAGS, f"--workdir={killed}"]) == 0
    out = capsys.readouterr().out
    assert "Checkpoint 6 is damaged and skipped" in out
    assert f"Resumed at step 4 from {killed}" in out
    assert {path.name for path in (place(killed) / "damaged_checkpoints").iterdir()} == {"6"}
    assert checksums(place(killed)) == checksums(calm)


def test_the_registry_reads_run_folders(killed, calm, capsys):
    from registry.tool.command_line import main as registry

    assert registry(["diff", killed, str(calm)]) == 0
    capsys.readouterr()
    assert not is_in_use(place(killed))
    assert registry(["runs", f"{killed.rpartition('/')[0]}/k*", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run"], row["state"], row["step"]) == (killed, "finished", 6)
    assert registry(["compare", killed, str(calm)]) == 0
    assert "No difference." in capsys.readouterr().out


def test_who_does_not_write_leaves_no_trace(bucket, capsys):
    assert main.main([f"--workdir={bucket}/runs/none", "--mode=validation"]) == 2
    assert f"'{bucket}/runs/none' is not a run folder" in capsys.readouterr().err
    assert not place(f"{bucket}/runs/none").exists()


@pytest.fixture
def holder(bucket):
    """A folder, and a living process that trains in it."""
    folder = f"{bucket}/{time.monotonic_ns()}"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield folder, process
    process.kill()
    process.communicate()


def take(folder):
    with lease.held(place(folder)):
        return True


def test_a_second_trainer_is_refused_until_the_first_is_dead(holder, capsys):
    folder, process = holder
    assert is_in_use(place(folder))
    with pytest.raises(UsageError, match=f"Another process trains in '{folder}' .*process {process.pid}"):
        take(folder)
    process.kill()
    process.wait()
    capsys.readouterr()
    assert take(folder)
    assert "waiting" not in capsys.readouterr().out  # a process of this machine is known to be dead
    assert take(folder)  # and who has let go is not waited for


def test_a_silent_process_elsewhere_is_taken_over(bucket, monkeypatch, capsys):
    folder = f"{bucket}/silent"
    held = {"host": "far", "pid": 1, "space": "far", "renewals": 3, "released": False}
    write_whole(place(f"{folder}/lease/00000003"), json.dumps(held))
    monkeypatch.setattr(lease, "DEAD_SECONDS", 1.0)
    began = time.monotonic()
    assert take(folder)
    assert time.monotonic() - began > 1
    assert "is leased by far (process 1). Waiting" in capsys.readouterr().out
    assert [path.name for path in place(f"{folder}/lease").iterdir()] == ["00000004"]


def test_who_was_taken_over_ends(holder):
    folder, process = holder
    write_whole(place(f"{folder}/lease/00000002"), json.dumps({"released": True}))
    assert process.wait(120) == 1
    assert b"Another process has taken over" in process.stderr.read()


def test_only_one_makes_the_next_lease(bucket):
    system, root = fsspec.core.url_to_fs(f"{bucket}/race")
    system.pipe_file(f"{root}/1", b"first", mode="create")
    with pytest.raises(FileExistsError):
        system.pipe_file(f"{root}/1", b"second", mode="create")
    assert system.cat_file(f"{root}/1") == b"first"


def test_a_store_that_fails_during_a_run(bucket, capsys, monkeypatch):
    async def refuse(*arguments, **given):
        raise PermissionError("Access Denied")

    def save(self, step, *others, **options):
        system = fsspec.get_filesystem_class(bucket.partition("://")[0])
        monkeypatch.setattr(system, "_call_s3" if bucket.startswith("s3") else "_call", refuse)
        return whole(self, step, *others, **options)

    whole = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", save)
    assert main.main([*FLAGS, f"--workdir={bucket}/fails"]) in (1, 2)
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("vortaro: ")
    assert "Access Denied" in message


def test_files_of_a_store(bucket):
    folder = place(f"{bucket}/files")
    append_line(folder / "a" / "lines", {"step": 1})
    append_line(folder / "a" / "lines", {"step": 2})
    write_whole(folder / "b" / "old", "old")
    move_folder(folder / "a", folder / "b")
    assert list(read_lines(folder / "b" / "lines")) == [{"step": 1}, {"step": 2}]
    assert not (folder / "a").exists()


def test_a_store_that_nobody_may_write_to(capsys):
    with stores.standing("gs"):
        assert main.main([*FLAGS, f"--workdir=gs://{object_stores.READ_ONLY}/run"]) == 2
        (message,) = capsys.readouterr().err.splitlines()
        assert message.startswith(f"vortaro: 'gs://{object_stores.READ_ONLY}/run' cannot be written: Forbidden")


def test_a_bucket_of_a_mistyped_name_is_not_made(bucket, capsys):
    mistyped = f"{bucket}s"
    assert main.main([*FLAGS, f"--workdir={mistyped}/run"]) == 2
    message = f"vortaro: '{mistyped}/run' cannot be written: bucket 'buckets' does not exist.\n"
    assert capsys.readouterr().err == message
    system, root = fsspec.core.url_to_fs(mistyped)
    assert not system.exists(root)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_store_that_lets_nobody_in(scheme, command):
    stores.require(scheme)
    leads = {"gs": object_stores.google_environment, "s3": object_stores.amazon_environment}[scheme]
    with object_stores.closed() as address:
        done = command("registry", "diff", f"{scheme}://{object_stores.BUCKET}/run", **leads(address))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"registry: '{scheme}://{object_stores.BUCKET}/run' cannot be reached: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gcs://bucket/run", "Did you mean 'gs'"),
        ("gs://bucket/run", "needs the package gcsfs. Run pip install -c constraints.txt -e '.[gcs]'"),
    ],
)
def test_what_a_store_needs(name, message, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None if package == "gcsfs" else found(package))
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        place(name)
