"""The manifest of a checkpoint: its files, and the checks that refuse an incomplete one. Needs no torch.

Design
------
The manifest is written last, into a directory that does not have its final name yet, so a directory with both is one
that all ranks finished. It has its own checksum, and size and checksum of every other file. CRC-32 detects faulty disks
and copies, not malice: whoever can write here can also write the training script.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from caboose.checkpoints import layout
from caboose.checkpoints.errors import CheckpointRefused

FORMAT = 1
CHUNK_BYTES = 4 * 1024 * 1024


class File(msgspec.Struct, frozen=True, array_like=True):
    """One file of a checkpoint."""

    size: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint and its files."""

    format: int
    step: int
    """The step after which it was saved."""
    model_step: int
    """The age of the weights, which a rollback takes back."""
    world: int
    time: float
    torch: str
    wrapper: str
    """Class of the outermost module."""
    parts: tuple[str, ...]
    """Names of the parts beside model and optimizers: scheduler, scaler, extras."""
    local: tuple[str, ...]
    """The parts of which each rank has its own state, which another number of ranks could not load."""
    files: dict[str, File]

    @property
    def num_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size for file in self.files.values())


class _Sealed(msgspec.Struct, frozen=True):
    crc32: int
    manifest: msgspec.Raw


class _Format(msgspec.Struct, frozen=True):
    format: int


def write(path: Path, manifest: Manifest) -> None:
    """Writes the manifest durably."""
    body = msgspec.json.encode(manifest)
    layout.write_durably(
        path / layout.MANIFEST, msgspec.json.encode(_Sealed(crc32=zlib.crc32(body), manifest=msgspec.Raw(body)))
    )


def read(path: Path) -> Manifest:
    """The manifest of a checkpoint; CheckpointRefused with the reason if there is no valid one."""
    if path.name.endswith(layout.INCOMPLETE):
        raise CheckpointRefused(path, "it was interrupted while it was written")
    if not path.is_dir():
        raise CheckpointRefused(path, "there is no such directory")
    try:
        content = (path / layout.MANIFEST).read_bytes()
    except FileNotFoundError:
        raise CheckpointRefused(
            path, f"it has no {layout.MANIFEST}: it was not finished, or Caboose did not write it"
        ) from None
    except OSError as error:
        raise CheckpointRefused(path, f"{layout.MANIFEST} cannot be read: {error.strerror}") from None
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
        found = msgspec.json.decode(sealed.manifest, type=_Format).format
        if found > FORMAT:
            raise CheckpointRefused(
                path, f"a newer Caboose wrote it (format {found}, this one reads up to {FORMAT}); upgrade to load it"
            )
        if zlib.crc32(bytes(sealed.manifest)) != sealed.crc32:
            raise CheckpointRefused(path, f"{layout.MANIFEST} is damaged: its checksum does not match")
        return msgspec.json.decode(sealed.manifest, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointRefused(path, f"{layout.MANIFEST} is damaged: {error}") from None


def saved_at(path: Path) -> float:
    """When a checkpoint was saved, by its manifest; 0 if that cannot be read."""
    try:
        return read(path).time
    except CheckpointRefused:
        return 0.0


def check_sizes(path: Path, manifest: Manifest) -> None:
    """Refuses a checkpoint with a missing or truncated file."""
    for name, file in manifest.files.items():
        try:
            size = (path / name).stat().st_size
        except OSError:
            raise CheckpointRefused(path, f"{name} is missing") from None
        if size != file.size:
            raise CheckpointRefused(path, f"{name} has {size} bytes, {file.size} were written")


def check_sums(path: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Refuses a checkpoint with a wrong checksum; reads all files, or those named."""
    for name in manifest.files if names is None else names:
        try:
            found = checksum(path / name)
        except OSError as error:
            raise CheckpointRefused(path, f"{name} cannot be read: {error.strerror}") from None
        if found != manifest.files[name].crc32:
            raise CheckpointRefused(path, f"{name} is damaged: its checksum does not match")


def check_world(path: Path, manifest: Manifest, world: int) -> None:
    """Refuses a checkpoint that another number of ranks wrote."""
    if manifest.world != world:
        raise CheckpointRefused(
            path,
            f"{manifest.world} ranks wrote it and {world} would load it: each rank's own state "
            f"({', '.join(manifest.local)}) would be lost; allow_other_world=True loads the rest",
        )


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def described(path: Path) -> File:
    """Size and checksum of a file."""
    return File(path.stat().st_size, checksum(path))
