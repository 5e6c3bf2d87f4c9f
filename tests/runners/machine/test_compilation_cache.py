"""The compilation cache: in the user's cache folder by default, bounded, and not for several CPU devices."""

import os
from pathlib import Path

import jax
import pytest
from jax._src.lru_cache import LRUCache

from runners.machine import compilation_cache
from runners.machine.compilation_cache import FOLDER, SETTINGS, processor, use_compilation_cache

NAMES = ("jax_compilation_cache_dir", *SETTINGS)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """JAX's settings, as without a cache; the cache folder is a temporary one and there is one device."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    for name in SETTINGS:
        monkeypatch.delenv(name.upper(), raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    yield lambda: {name: getattr(jax.config, name) for name in NAMES}
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_stored_up_to_a_limit(config, tmp_path):
    use_compilation_cache()
    expected = {"jax_compilation_cache_dir": str(tmp_path / "vortaro" / FOLDER / processor()), **SETTINGS}
    assert config() == expected
    assert expected["jax_compilation_cache_max_size"] == 2 * 2**30


def test_the_environment_is_kept(config, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "1000")
    jax.config.update("jax_compilation_cache_max_size", 1000)
    use_compilation_cache()
    assert config()["jax_compilation_cache_max_size"] == 1000
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    use_compilation_cache()
    assert config()["jax_compilation_cache_dir"] == str(tmp_path / "mine")


def test_not_for_several_devices_of_cpus_or_processes_or_folders_of_others(config, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_count", lambda: 8)
        use_compilation_cache()
    assert config()["jax_compilation_cache_dir"] is None
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        use_compilation_cache()
    assert config()["jax_compilation_cache_dir"] is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 123_456)
        use_compilation_cache()
    assert config()["jax_compilation_cache_dir"] is None
    folder = tmp_path / "vortaro" / FOLDER
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    use_compilation_cache()
    assert config()["jax_compilation_cache_dir"] is None


def test_of_many_programs_those_read_last_are_kept(config, tmp_path, monkeypatch):
    """JAX lists all of them whenever it stores one. Large ones took long to compile."""
    monkeypatch.setattr(compilation_cache, "MOST", 5)
    monkeypatch.setattr(compilation_cache, "KEPT", 3)
    use_compilation_cache()
    cache = LRUCache(config()["jax_compilation_cache_dir"], max_size=2**30)
    for number in range(5):
        cache.put(f"program{number}", bytes(compilation_cache.LARGE if number == 2 else 1))
    assert cache.get("program1") == bytes(1)
    jax.config.update("jax_compilation_cache_dir", None)
    use_compilation_cache()
    assert cache.get("program0") == bytes(1), "there are not too many"
    cache.put("program5", b"content")
    cache.get("program3")
    jax.config.update("jax_compilation_cache_dir", None)
    use_compilation_cache()
    left = {file.name for file in Path(cache.path).iterdir()} - {".lockfile"}
    assert left == {f"program{number}-{kind}" for number in (2, 3, 5) for kind in ("cache", "atime")}


def test_processors_have_folders_of_their_own(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(compilation_cache, "CPU", cpuinfo)
    found = []
    for features in ("avx2", "avx2 avx512f", "avx2"):
        cpuinfo.write_text(f"processor : 0\nflags : {features}\ncpu MHz : {len(found)}\n")
        found.append(processor())
    assert found[0] == found[2] != found[1]
