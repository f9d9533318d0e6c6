"""Reading an organisation's text as a ``datasets.Dataset``, without a copy of it anywhere on disk.

``datasets.load_dataset`` would convert the text into its own cache folder first. Private text does not
belong there, so files are read into memory (Arrow) or, where they are Arrow already, mapped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distro_fed.errors import DataNotFound, UnusableData

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

SUFFIXES = (".jsonl", ".json", ".parquet")
# pyarrow cannot read a JSON line that is longer than its block.
_JSON_BLOCK_BYTES = 64 * 2**20


def load_examples(source: str, *, split: str = "train", allow_download: bool = False) -> Dataset:
    """Load one split of a data set.

    Parameters
    ----------
    source : str
        A ``.jsonl``, ``.json`` (a list of objects) or ``.parquet`` file, which is one split whatever its
        name; a folder with files named by split (``train.jsonl``, ``test-00000-of-00001.parquet``) or
        written by ``Dataset.save_to_disk``; or a hub id.
    split : str
        ``"train"``, ``"validation"``, ``"test"`` or another name that the folder knows.
    allow_download : bool
        Whether a hub id may be fetched. Without it only the local hub cache is looked at.

    Returns
    -------
    datasets.Dataset
        At least one row.

    Raises
    ------
    DataNotFound
        If the source or the split does not exist.
    UnusableData
        If a file cannot be read or has no row.
    """
    path = Path(source).expanduser()
    if path.is_file():
        if split != "train":
            raise DataNotFound(f"{path} is one file and has no split {split!r}: name the held-out file itself")
        dataset = _from_files([path])
    elif path.is_dir():
        dataset = _from_folder(path, split)
    else:
        dataset = _from_folder(_hub_folder(source, allow_download), split)
    if dataset.num_rows == 0:
        raise UnusableData(f"{source} has no rows in split {split!r}")
    return dataset


def _from_folder(folder: Path, split: str) -> Dataset:
    from datasets import DatasetDict, load_from_disk

    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        saved = load_from_disk(str(folder))
        splits = saved if isinstance(saved, DatasetDict) else {"train": saved}
        if split not in splits:
            raise DataNotFound(f"{folder} has no split {split!r}, only {', '.join(map(repr, splits))}")
        return splits[split]
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    files = [path for path in files if not any(part[0] == "." for part in path.relative_to(folder).parts)]
    # "train.jsonl", "train-00000-of-00002.parquet", and "train/anything.parquet" below the folder itself
    named = re.compile(rf"{re.escape(split)}(-\d+(-of-\d+)?)?")
    chosen = [path for path in files if named.fullmatch(path.stem) or path.relative_to(folder).parent.name == split]
    if not chosen:
        present = ", ".join(str(path.relative_to(folder)) for path in files[:10]) or "no data files"
        raise DataNotFound(
            f"{folder} has no file for split {split!r} (found {present}); expected {split}.jsonl, {split}.json or "
            f"{split}.parquet"
        )
    homes = sorted({str(path.parent.relative_to(folder)) for path in chosen})
    if len(homes) > 1:
        raise UnusableData(f"{folder} has several data sets with split {split!r}: name one of {', '.join(homes)}")
    return _from_files(chosen)


def _from_files(files: Sequence[Path]) -> Dataset:
    import pyarrow
    from datasets import Dataset

    tables = [_read_table(file) for file in files]
    try:
        return Dataset(pyarrow.concat_tables(tables, promote_options="permissive"))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise UnusableData(f"{', '.join(map(str, files))} do not have the same columns: {error}") from error


def _read_table(file: Path) -> pyarrow.Table:
    import pyarrow
    import pyarrow.json
    import pyarrow.parquet

    if file.suffix not in SUFFIXES:
        raise UnusableData(f"{file} has the suffix {file.suffix!r}; data files are {', '.join(SUFFIXES)}")
    if file.stat().st_size == 0:
        raise UnusableData(f"{file} is empty")
    try:
        if file.suffix == ".parquet":
            return pyarrow.parquet.read_table(file)
        if file.suffix == ".json":
            rows = json.loads(file.read_text(encoding="utf-8-sig"))
            if not isinstance(rows, list):
                raise UnusableData(f"{file} holds {type(rows).__name__}, expected a list of objects")
            return pyarrow.Table.from_pylist(rows)
        with file.open(encoding="utf-8") as lines:
            for _ in lines:  # Arrow takes other encodings in, and they fail where no file is known any more
                pass
        options = pyarrow.json.ReadOptions(block_size=_JSON_BLOCK_BYTES)
        return pyarrow.json.read_json(file, read_options=options)
    except (pyarrow.ArrowException, ValueError, AttributeError) as error:
        raise UnusableData(f"{file} cannot be read as {file.suffix[1:]}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    # Of private text only the position and the kind of fault may be told. Arrow's JSON reader says no more
    # than that; other messages may quote a value.
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8; convert it"
    return str(error) if str(error).startswith("JSON parse error") else type(error).__name__


def _hub_folder(name: str, allow_download: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                name,
                repo_type="dataset",
                local_files_only=not allow_download,
                allow_patterns=[f"*{suffix}" for suffix in SUFFIXES],
            )
        )
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError) as error:
        if allow_download:
            way_out = f"the hub did not give it ({error})"
        else:
            way_out = f"run `hf download --repo-type dataset {name}`, set allow-download = true, or name a file"
        raise DataNotFound(f"data {name!r} is not a file, not a folder and not in {HF_HUB_CACHE}: {way_out}") from error
