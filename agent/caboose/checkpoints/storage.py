"""How torch.distributed.checkpoint writes and reads files here: with a JSON index.

Design
------
torch keeps the place of each tensor in `.metadata`, a pickle, and unpickles whatever it finds there. So the index is
written again as JSON, and only that is read; `.metadata` remains, for loading a checkpoint with torch alone. Values
that are not tensors would be pickled too, so torch gets none: the files hold tensors only, which torch loads with
`weights_only=True`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from caboose.checkpoints import layout
from caboose.checkpoints.errors import CheckpointRefused
from caboose.checkpoints.manifest import Manifest


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a tensor, and the bytes that hold it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    position: int
    length: int


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A tensor on disk."""

    dtype: str
    size: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"a tensor of type {self.dtype!r}, which this torch does not know")
        return found


Index = dict[str, Stored]


@dataclass(frozen=True)
class _Place:
    """The place of a piece, as torch's reader needs it."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


class ShardWriter(FileSystemWriter):
    """torch's writer; the rank that writes its `.metadata` writes the index too."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, single_file_per_rank=True, sync_files=True, overwrite=False)
        self._directory = path

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Called by torch on rank 0 when all ranks have written their tensors."""
        super().finish(metadata, results)
        places = {result.index: result.storage_data for rank in results for result in rank}
        index: Index = {}
        for key, stored in metadata.state_dict_metadata.items():
            assert isinstance(stored, TensorStorageMetadata), f"{key} is not a tensor"
            pieces = []
            for chunk in stored.chunks:
                place = places[MetadataIndex(key, chunk.offsets)]
                pieces.append(
                    Piece(tuple(chunk.offsets), tuple(chunk.sizes), place.relative_path, place.offset, place.length)
                )
            dtype = str(stored.properties.dtype).removeprefix("torch.")
            index[key] = Stored(dtype, tuple(stored.size), tuple(pieces))
        layout.write_durably(self._directory / layout.INDEX, msgspec.json.encode(index))


def read_index(path: Path, manifest: Manifest) -> Index:
    """The place of each tensor; refused if it points outside of the manifest's files."""
    try:
        index = msgspec.json.decode((path / layout.INDEX).read_bytes(), type=Index)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointRefused(path, f"{layout.INDEX} cannot be read: {error}") from None
    for stored in index.values():
        try:
            _ = stored.torch_dtype
        except ValueError as error:
            raise CheckpointRefused(path, f"{layout.INDEX} names {error}") from None
        for piece in stored.pieces:
            if piece.file not in manifest.files:
                raise CheckpointRefused(path, f"{layout.INDEX} names {piece.file!r}, which is not part of it")
    return index


class Reader(FileSystemReader):
    """torch's reader, with our index."""

    def __init__(self, path: Path, index: Index) -> None:
        super().__init__(path)
        self._index = index

    def read_metadata(self) -> Metadata:
        """The metadata that torch would have unpickled. Takes no rank, so that torch does not read it per rank."""
        tensors: dict[str, Any] = {}
        places = {}
        for key, stored in self._index.items():
            chunks = []
            for piece in stored.pieces:
                chunks.append(ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes)))
                places[MetadataIndex(key, piece.offsets)] = _Place(piece.file, piece.position, piece.length)
            properties = TensorProperties(dtype=stored.torch_dtype)
            tensors[key] = TensorStorageMetadata(properties, torch.Size(stored.size), chunks)
        return Metadata(tensors, storage_data=places, storage_meta=StorageMeta(load_id=self.load_id))
