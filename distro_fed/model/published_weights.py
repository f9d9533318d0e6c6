"""Identity of a base model: its weights as they were published, however a machine holds them in memory."""

from __future__ import annotations

import hashlib
import json
import mmap
from contextlib import ExitStack, suppress
from pathlib import Path

from distro_fed.errors import ModelNotFound
from distro_fed.files import cache_dir, write_atomically

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LENGTH_BYTES = 8
_DIGEST_CHARS = 32


def published_digest(folder: Path) -> str:
    """BLAKE2b-128 over name, dtype, shape and bytes of every tensor in the folder's safetensors, by name.

    It is the same at members that load the model in float32, in bfloat16 or in 4 bits, and does not depend on how the
    tensors are cut into files.

    Parameters
    ----------
    folder : Path
        With ``model.safetensors``, or the files that ``model.safetensors.index.json`` names.

    Returns
    -------
    str
        32 hex characters, from the cache while the files are the same.

    Raises
    ------
    ModelNotFound
        The weights are missing or damaged.
    """
    files = weight_files(folder)
    stats = [(path.name, path.stat()) for path in files]
    identity = json.dumps([str(folder.resolve()), [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]])
    place = cache_dir() / "digests" / hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    if place.is_file() and len(kept := place.read_text()) == _DIGEST_CHARS:
        return kept
    try:
        digest = _digest(files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFound(f"safetensors weights in {folder} are damaged ({error}): fetch the model again") from error
    with suppress(OSError):  # a cache that cannot be written costs time only
        write_atomically(place, digest)
    return digest


def weight_files(folder: Path) -> list[Path]:
    """Files of the weights, as transformers looks for them.

    Raises
    ------
    ModelNotFound
        There are none. Weights as pickles are not read: a pickle runs code.
    """
    if (folder / _ONE_FILE).is_file():
        return [folder / _ONE_FILE]
    try:
        names = set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except FileNotFoundError:
        raise ModelNotFound(f"{folder} has no safetensors weights ({_ONE_FILE} or {_INDEX})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFound(f"{folder / _INDEX} is damaged ({error!r}): fetch the model again") from error
    files = [folder / str(name) for name in sorted(names)]
    for path in files:
        if not path.is_file():
            raise ModelNotFound(f"{path} is missing: fetch the model again")
    return files


def _digest(files: list[Path]) -> str:
    state = hashlib.blake2b(digest_size=16, person=b"df-base")
    with ExitStack() as stack:
        tensors: dict[str, tuple[str, memoryview]] = {}
        for path in files:
            stream = stack.enter_context(path.open("rb"))
            data = stack.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
            view = stack.enter_context(memoryview(data))
            header = int.from_bytes(view[:_LENGTH_BYTES], "little") + _LENGTH_BYTES
            for name, tensor in json.loads(bytes(view[_LENGTH_BYTES:header])).items():
                if name != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    if not 0 <= begin <= end <= len(view) - header:
                        raise ValueError(f"tensor {name!r} lies outside of {path.name}")
                    title = f"{name}\0{tensor['dtype']}\0{','.join(map(str, tensor['shape']))}\n"
                    tensors[name] = (title, stack.enter_context(view[header + begin : header + end]))
        for name in sorted(tensors):
            title, values = tensors[name]
            state.update(title.encode())
            state.update(values)
    return state.hexdigest()
