"""Every script and manifest that is written is sound, and does with every word what was asked for."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from launch import rendering
from launch.command_line import RENDER
from tests.launch.conftest import LAUNCHES, RUNNER, rendered
from tests.support.processes.fake_launch_tools import Machine, executable

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def test_all_targets_are_here():
    assert {name.partition(",")[0] for name in LAUNCHES} == set(RENDER)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_scripts_are_sound(launch, checkout):
    scripts = [path for path in rendered(LAUNCHES[launch], checkout / "out") if path.suffix != ".yaml"]
    assert scripts
    for path in scripts:
        subprocess.run(["bash", "-n", str(path)], check=True)
    if SHELLCHECK is None:
        pytest.skip("shellcheck is not installed: pip install -e '.[dev]'")
    done = subprocess.run([SHELLCHECK, *map(str, scripts)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_script_of_pods_is_sound():
    if SHELLCHECK is None:
        pytest.skip("shellcheck is not installed: pip install -e '.[dev]'")
    done = subprocess.run([SHELLCHECK, str(rendering.TEMPLATES / "pod.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("launch", LAUNCHES)
def test_each_script_can_be_asked_what_it_would_do(launch, checkout):
    machine = Machine(checkout)
    scripts = [path for path in rendered(LAUNCHES[launch], checkout / "out") if path.suffix != ".yaml"]
    environment = {**os.environ, **machine.environment, "HOME": str(checkout / "home")}
    environment["PATH"] = f"{machine.hosts}/bin:{environment['PATH']}"
    (checkout / "home" / "vortaro" / "code").mkdir(parents=True)
    before = sorted(checkout.rglob("*"))
    for path in scripts:
        done = subprocess.run(["bash", str(path), "--dry_run"], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("+ ")
        assert (machine.calls(), sorted(checkout.rglob("*"))) == ([], before)
        done = subprocess.run(["bash", str(path), "--dryrun"], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "vortaro: Unknown argument '--dryrun'. Valid: '--dry_run'.\n"


@pytest.mark.parametrize("launch", [name for name in LAUNCHES if not name.startswith("tpu ")])
def test_the_output_of_a_dry_run_can_be_pasted(launch, checkout, command):
    machine, (target, *rest) = Machine(checkout), LAUNCHES[launch]
    preview = command("launch", target, "--dry_run", *rest, **machine.environment)
    assert preview.returncode == 0, preview.stderr
    assert machine.calls() == []
    done = command("launch", target, *rest, **machine.environment)
    assert done.returncode == 0, done.stderr
    launched = machine.calls()
    assert launched
    machine.record.unlink()
    lines = [line[2:] for line in preview.stdout.splitlines() if line.startswith("+ ")]
    environment = {**os.environ, **machine.environment}
    subprocess.run(["bash", "-c", "\n".join(lines)], env=environment, cwd=checkout, check=True)
    assert machine.calls() == launched


def test_mpirun_gets_every_word_and_time_to_save(checkout, command):
    machine = Machine(checkout)
    done = command("launch", *LAUNCHES["mpirun"], **machine.environment)
    assert done.returncode == 0, done.stderr
    line = ["mpirun", "-n", "4", "--bind-to", "none", "--host", "a:2,b:2", "-x", "XLA_FLAGS", "--wdir", str(checkout)]
    grace = ["OMPI_MCA_odls_base_sigkill_timeout", "PRTE_MCA_odls_base_sigkill_timeout"]
    assert machine.calls() == [[*line, sys.executable, *RUNNER, *grace]]


def test_mpirun_activates_on_each_host(checkout, command):
    machine = Machine(checkout)
    done = command("launch", *LAUNCHES["mpirun, activated"], **machine.environment)
    assert done.returncode == 0, done.stderr
    [called] = machine.calls()
    executable(checkout / "python", f"#!{sys.executable}\nimport os, sys\nprint(os.environ['X'], sys.argv[1:])\n")
    on_host = called[called.index("bash") : -2]
    done = subprocess.run(on_host, env={"PATH": f"{checkout}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.stdout == f"1 {RUNNER}\n"


def kubernetes(text):
    """What Kubernetes makes of a word of a container's command: $$ is $, and $(NAME) a variable's value."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda m: f"<{m[1]}>" if m[1] else "$", text)


def manifest(launch, folder):
    """The manifest that a launch writes, and its pods' part."""
    rendered(LAUNCHES[launch], folder)
    made = yaml.safe_load((folder / "jobset.yaml").read_text())
    return made, made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_the_jobset_is_one_indexed_job_that_restarts_completely(checkout):
    made, pod = manifest("jobset, tpu", checkout / "out")
    assert (made["apiVersion"], made["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert made["metadata"]["name"] == "one"
    spec = made["spec"]
    assert spec["network"]["enableDNSHostnames"] is True
    [group] = spec["replicatedJobs"]
    assert spec["coordinator"] == {"replicatedJob": group["name"], "jobIndex": 0, "podIndex": 0}
    job = group["template"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"], job["backoffLimit"]) == ("Indexed", 4, 4, 0)
    assert spec["failurePolicy"]["maxRestarts"] == 10
    [rule], [pod_rule] = spec["failurePolicy"]["rules"], job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"])
    assert pod_rule == {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 300)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    [container] = pod["containers"]
    assert container["resources"] == {"limits": {"google.com/tpu": 4}}


def test_pods_get_every_word_and_find_process_0(checkout):
    _, pod = manifest("jobset, tpu", checkout / "out")
    [container] = pod["containers"]
    assert [kubernetes(word) for word in container["args"]] == ["python", *RUNNER]
    variables = {entry["name"]: entry for entry in container["env"]}
    path = variables["COORDINATOR_HOST"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['jobset.sigs.k8s.io/coordinator']"
    assert kubernetes(variables["JAX_COORDINATOR_ADDRESS"]["value"]) == "<COORDINATOR_HOST>:8482"
    assert variables["JAX_NUM_PROCESSES"]["value"] == "4"
    assert container["ports"] == [{"containerPort": 8482}]
    shell, flag, script, name = map(kubernetes, container["command"])
    assert (shell, flag, name) == ("sh", "-c", "pod")
    assert script.strip() == (rendering.TEMPLATES / "pod.sh").read_text().strip()


def test_pods_with_gpus_mount_what_they_share(checkout):
    _, pod = manifest("jobset, gpu", checkout / "out")
    [container] = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert pod["volumes"] == [{"name": "shared-0", "persistentVolumeClaim": {"claimName": "data"}}]
    assert container["volumeMounts"] == [{"name": "shared-0", "mountPath": "/mnt/data"}]
    assert pod["terminationGracePeriodSeconds"] == 60


RUN = """
import signal, sys, time
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
print("up", flush=True)
for _ in range(60000 if sys.argv[1] == "long" else 1):
    time.sleep(0.05)
    if signals:
        time.sleep(0.2)
        print("saved", flush=True)
        sys.exit(0)
sys.exit(int(sys.argv[2]))
"""


def pod(*arguments):
    """A pod's script around a run."""
    words = ["sh", "-c", (rendering.TEMPLATES / "pod.sh").read_text(), "pod", sys.executable, "-c", RUN, *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_a_stopped_pod_saves_and_is_not_a_success():
    started = pod("long", "0")
    assert started.stdout.readline() == "up\n"
    started.send_signal(signal.SIGTERM)
    assert started.communicate(timeout=600)[0] == "saved\n"
    assert started.returncode == 143


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_pod_ends_as_its_run(code):
    started = pod("short", str(code))
    started.communicate(timeout=600)
    assert started.returncode == code


def test_every_place_of_a_template_is_filled(tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "TEMPLATES", tmp_path)
    (tmp_path / "a.sh").write_text("%%{one} %%{two}\n")
    assert rendering.render("a.sh", one="a b", two=["c", "d e"]) == "'a b' c 'd e'\n"
    for values in ({"one": 1}, {"one": 1, "two": 2, "three": 3}):
        with pytest.raises(ValueError, match="needs values of"):
            rendering.render("a.sh", **values)
    (tmp_path / "a.sh").write_text("%%{one} %%{two\n")
    with pytest.raises(ValueError, match="needs values of"):
        rendering.render("a.sh", one=1)


PYTHON = """#!{python}
import json, os, signal, sys, time
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
print(json.dumps(sys.argv[1:]), flush=True)
while not signals:
    time.sleep(0.05)
print("saved", flush=True)
"""


def eventually(condition, seconds=600):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_slice_is_installed_and_run_and_stopped(checkout, command):
    machine = Machine(checkout)
    executable(machine.hosts / "bin" / "python3", '#!/usr/bin/env bash\necho "$PWD: python3 $*"\n')
    process = command("launch", *LAUNCHES["tpu install"], **machine.environment)
    assert process.returncode == 0, process.stderr
    for host in (machine.hosts / "host0", machine.hosts / "host1"):
        assert (host / "vortaro/code/pyproject.toml").exists()
        assert f"{host}/vortaro/code: python3 -m uv pip install --quiet --python ../venv/bin/python " in process.stdout
        executable(host / "vortaro/venv/bin/python", PYTHON.format(python=sys.executable))
    logs = [machine.hosts / host / "vortaro/run.log" for host in ("host0", "host1")]
    process = command("launch", *LAUNCHES["tpu run"], **machine.environment)
    assert process.returncode == 0, process.stderr
    eventually(lambda: all(log.exists() and "[" in log.read_text() for log in logs))
    again = command("launch", *LAUNCHES["tpu run"], **machine.environment)
    assert again.returncode == 2
    assert "A run is active on" in again.stderr
    process = command("launch", *LAUNCHES["tpu kill"], **machine.environment)
    assert process.returncode == 0, process.stderr
    for log in logs:
        shown = log.read_text().splitlines()
        assert shown[-3:] == [json.dumps(RUNNER), "saved", "The run ended with exit code 0."]
    process = command("launch", *LAUNCHES["tpu kill"], **machine.environment)
    assert process.stdout.count("No run is active on") == 2


VM, QUEUED = ["gcloud", "compute", "tpus", "tpu-vm"], ["gcloud", "compute", "tpus", "queued-resources"]
ZONE = "--zone=us-central2-b"
NEW = "--accelerator-type=v4-32"
RUNTIME = "tpu-ubuntu2204-base"
CALLS = {
    "tpu create": [*VM, "create", "slice", f"--version={RUNTIME}", NEW, "--spot", ZONE, "--project=p"],
    "tpu attach": [*VM, "ssh", "slice", "--worker=0", ZONE, "--", "-t", "tmux attach -t =vortaro"],
    "tpu delete": [*VM, "delete", "slice", "--quiet", ZONE],
    "tpu queue create": [
        *QUEUED,
        *("create", "slice", "--node-id=slice", f"--runtime-version={RUNTIME}", NEW, "--reserved", ZONE),
    ],
    "tpu queue state": [*QUEUED, "describe", "slice", "--format=value(state.state)", ZONE],
    "tpu queue delete": [*QUEUED, "delete", "slice", "--force", "--quiet", ZONE],
}


@pytest.mark.parametrize("launch", CALLS)
def test_gcloud_gets_every_word(launch, checkout, command):
    machine = Machine(checkout)
    words = LAUNCHES[launch]
    assert command("launch", *words, "--dry_run", **machine.environment).returncode == 0
    assert machine.calls() == []
    process = command("launch", *words, **machine.environment)
    assert process.returncode == 0, process.stderr
    assert machine.calls() == [CALLS[launch]]
