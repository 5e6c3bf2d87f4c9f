"""Strategies of archives: tar members with odd names, links, devices and sizes; contents that expand a thousandfold."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from testing.fuzz.mutations import NAMES, mutated_bytes

TYPES = (
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.DIRTYPE,
    tarfile.CHRTYPE,
    tarfile.FIFOTYPE,
    tarfile.GNUTYPE_SPARSE,
)
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
EXPANDED = 1 << 22  # bytes of a member that compresses to a thousandth


def tar_of(members: Mapping[str, bytes]) -> bytes:
    """Returns a tar archive of regular files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in members.items():
            _add(tar, name, content)
    return stream.getvalue()


@st.composite
def mutated_tar(draw: Any, members: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Returns the ending of a file's name (.tar, .tar.gz ...) and a mutated archive of these members.

    Members get names outside of the folder, become links to such places, devices or folders, change their content or
    are large zeros; the archive is mutated as bytes before or after its compression.
    """
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w", format=draw(st.sampled_from((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)))
    ) as tar:
        for name, content in members.items():
            kind = draw(st.sampled_from((*[tarfile.REGTYPE] * 6, *TYPES)))
            name = draw(st.sampled_from((name, name, name, *(f"{odd[:200]}.txt" for odd in NAMES))))
            edit = draw(st.integers(0, 5))
            content = draw(mutated_bytes(content)) if edit == 0 else bytes(EXPANDED) if edit == 1 else content
            _add(tar, name, content, kind, draw(st.sampled_from(NAMES)))
    archive = stream.getvalue()
    archive = draw(mutated_bytes(archive)) if draw(st.booleans()) and len(archive) < EXPANDED else archive
    ending = draw(st.sampled_from((*[""] * 3, *PACKERS)))
    packed = PACKERS[ending](archive)
    return f".tar{ending}", draw(mutated_bytes(packed)) if ending and draw(st.booleans()) else packed


def _add(tar: tarfile.TarFile, name: str, content: bytes, kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
    info = tarfile.TarInfo(name.replace("\0", "") or "empty")
    info.size, info.type, info.linkname = len(content), kind, target.replace("\0", "")[:200]
    tar.addfile(info, io.BytesIO(content))
