"""The target `jobset`: a JobSet of Kubernetes."""

import textwrap
from pathlib import Path

from launch.jobs import COORDINATOR_PORT, JobSet
from launch.rendering import TEMPLATES, Verbatim, steps, write
from launch.rendering import render as fill

EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}  # a slice is one node pool


def mounts(job: JobSet) -> list[str]:
    """Returns the paths at which the pods mount shared volumes."""
    return [volume.partition(":")[2] for volume in job.volume]


def render(job: JobSet, folder: Path) -> Path:
    """Writes the manifest and the script that applies it; returns the path of the script."""
    limits, selector = {}, {}
    if job.tpu_type:
        limits = {"google.com/tpu": job.chips // job.num_hosts}
        selector = {
            "cloud.google.com/gke-tpu-accelerator": job.tpu_type,
            "cloud.google.com/gke-tpu-topology": job.topology,
        }
    elif job.gpus:
        limits = {"nvidia.com/gpu": job.gpus}
    claims = [volume.partition(":")[0] for volume in job.volume]
    names = [f"shared-{number}" for number in range(len(claims))]
    manifest = fill(
        "jobset.yaml",
        name=job.name,
        annotations=EXCLUSIVE if job.tpu_type else {},
        max_restarts=job.max_restarts,
        num_hosts=job.num_hosts,
        grace=job.grace,
        service_account=job.service_account,
        node_selector=selector,
        tolerations=[{"key": resource, "operator": "Exists"} for resource in limits],
        volumes=[
            {"name": name, "persistentVolumeClaim": {"claimName": claim}}
            for name, claim in zip(names, claims, strict=True)
        ],
        mounts=[{"name": name, "mountPath": path} for name, path in zip(names, mounts(job), strict=True)],
        image=job.image,
        pod=Verbatim(textwrap.indent(_literal((TEMPLATES / "pod.sh").read_text().rstrip()), " " * 22)),
        arguments=["python", "-m", "runners.main", *map(_literal, job.flags)],
        coordinator=f"$(COORDINATOR_HOST):{COORDINATOR_PORT}",
        num_processes=str(job.num_hosts),
        port=COORDINATOR_PORT,
        limits=limits,
    )
    path = write(folder, "jobset.yaml", manifest)
    apply = ["kubectl", "apply", "-f", str(path), *([f"--namespace={job.namespace}"] if job.namespace else [])]
    where = "Run this where kubectl can reach the cluster"
    return write(folder, "apply.sh", steps("kubectl", where, [apply]))


def _literal(text: str) -> str:
    """Returns text escaped for Kubernetes, which expands $(NAME) and replaces $$ by $."""
    return text.replace("$", "$$")
