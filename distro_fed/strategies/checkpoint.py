"""A run's state in files: complete at any moment, and checked when it is read.

::

    checkpoint/
      checkpoint.json                   facts, and names and digests of the other files; renamed into place last
      tensors-<round>-<random>.safetensors
      traffic-<round>-<random>.jsonl    messages since then, one line each (:mod:`.traffic`)

The rename of ``checkpoint.json`` is the one moment at which a new state takes the place of the old one. A process that
is killed before it leaves files that nothing names, and the next checkpoint removes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distro_fed.errors import CheckpointError
from distro_fed.files import write_atomically

if TYPE_CHECKING:
    import torch

FILE = "checkpoint.json"
_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """What was read.

    Attributes
    ----------
    facts : dict
        As they were given, after their way through JSON.
    tensors : dict of str to torch.Tensor
    traffic : Path
        Where messages since then are noted; may not exist.
    """

    facts: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    traffic: Path


def write_checkpoint(folder: Path, round_: int, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    """Replace the checkpoint in a folder, which belongs to one run alone; returns where to note traffic from now on.

    Parameters
    ----------
    folder : Path
    round_ : int
        Rounds that are done; part of the names of the files.
    facts : mapping
        What JSON can hold.
    tensors : mapping of str to torch.Tensor
        Flat, float32 or uint8, on the CPU.

    Raises
    ------
    OSError
        The old checkpoint is whole then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = f"{round_:08d}-{uuid.uuid4().hex[:8]}"
    data, traffic = folder / f"tensors-{mark}.safetensors", folder / f"traffic-{mark}.jsonl"
    try:
        digest = _write_tensors(data, tensors)
    except OSError:
        data.unlink(missing_ok=True)  # on a full disk the next attempt needs the room
        raise
    text = json.dumps(
        {"format": _FORMAT, "tensors": data.name, "tensors-digest": digest, "traffic": traffic.name, "facts": facts},
        allow_nan=False,
    )
    write_atomically(folder / FILE, f"{_digest(text)}\n{text}\n")
    for path in folder.iterdir():
        if path.name not in (FILE, data.name) and path.is_file():
            path.unlink()
    return traffic


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and check what :func:`write_checkpoint` wrote.

    Raises
    ------
    CheckpointError
        There is none, or it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / FILE
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist: name the folder of a run with save-rounds above 0 that has begun its first round, "
            "or start a new run in another folder"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    text = text.removesuffix("\n")
    if digest != _digest(text):
        raise CheckpointError(f"{path} is damaged: its digest is {digest[:64]}, computed {_digest(text)}")
    content = json.loads(text)
    if content["format"] != _FORMAT:
        raise CheckpointError(f"{path} has format {content['format']}, this release reads {_FORMAT}")
    data = folder / content["tensors"]
    try:
        found = _file_digest(data)
        if found != content["tensors-digest"]:
            raise CheckpointError(f"{data} is damaged: its digest is {found}, {content['tensors-digest']} was written")
        return Checkpoint(content["facts"], load_file(data), folder / content["traffic"])
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{data} cannot be read: {error}") from error


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write a safetensors file without a second copy of the tensors in memory; returns its digest."""
    names = {"torch.float32": "F32", "torch.uint8": "U8"}
    header, end = dict[str, Any](), 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": names[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    state = hashlib.blake2b(digest_size=16)
    parts: list[bytes | memoryview] = [len(head).to_bytes(8, "little"), head]
    parts += [tensor.numpy().data for tensor in tensors.values()]
    with path.open("wb") as stream:
        for part in parts:
            stream.write(part)
            state.update(part)
        stream.flush()
        os.fsync(stream.fileno())
    return state.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
