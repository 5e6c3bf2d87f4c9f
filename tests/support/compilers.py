"""Marks of tests that need the compiler of an accelerator, which is an extra."""

import pytest

from runners.planner.topologies import has_gpu_compiler, has_tpu_compiler

needs_tpu_compiler = pytest.mark.skipif(not has_tpu_compiler(), reason="needs the TPU compiler: make test-tpu")
needs_gpu_compiler = pytest.mark.skipif(not has_gpu_compiler(), reason="needs the GPU compiler: make test-gpu-plan")
