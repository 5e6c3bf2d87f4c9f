"""The runner on what it takes for a host of a Cloud TPU slice: its chips are made up, and it computes on the CPU."""

import glob
import importlib.util
import os
import sys

import jax
from jax._src.clusters import cloud_tpu_cluster

from runners.main import main

if __name__ == "__main__":
    really = importlib.util.find_spec
    glob.glob = lambda pattern: ["/dev/accel0"] if pattern.startswith("/dev/accel") else []
    importlib.util.find_spec = lambda name, *more: object() if name == "libtpu" else really(name, *more)
    cloud_tpu_cluster.running_in_cloud_tpu_vm = True
    os.environ.pop("TPU_SKIP_MDS_QUERY", None)  # set on machines without a TPU
    cloud_tpu_cluster.coordinator_port = sys.argv.pop(1)
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main())
