from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from distro_fed.data.load import load_examples
from distro_fed.errors import DataNotFound, UnusableData

ROWS = [{"prompt": "Where?", "completion": " Here."}, {"prompt": "When?", "completion": " Now."}]


def _write(path: Path, rows: list[dict[str, object]] | list[dict[str, str]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        Dataset.from_list(rows).to_parquet(str(path))
    return path


@pytest.mark.parametrize("suffix", (".jsonl", ".json", ".parquet"))
def test_a_file_is_read_whatever_its_name(tmp_path: Path, suffix: str) -> None:
    assert load_examples(str(_write(tmp_path / f"notes{suffix}"))).to_list() == ROWS


def test_messages_survive_as_lists_of_dicts(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}] * 2
    assert load_examples(str(_write(tmp_path / "chat.jsonl", rows)))["messages"][:] == [rows[0]["messages"]] * 2


@pytest.mark.parametrize(
    "names",
    (
        ("train.jsonl", "test.jsonl"),
        ("train.parquet", "test.json"),
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("train/a.jsonl", "test/a.jsonl"),
    ),
)
def test_a_folder_is_read_by_split(tmp_path: Path, names: tuple[str, str]) -> None:
    _write(tmp_path / names[0], ROWS[:1])
    _write(tmp_path / names[1], ROWS[1:])
    assert load_examples(str(tmp_path)).to_list() == ROWS[:1]
    assert load_examples(str(tmp_path), split="test").to_list() == ROWS[1:]


def test_shards_are_put_together_in_order(tmp_path: Path) -> None:
    for shard in (1, 0):
        _write(tmp_path / f"train-0000{shard}-of-00002.parquet", ROWS[shard : shard + 1])
    assert load_examples(str(tmp_path)).to_list() == ROWS


def test_a_folder_of_save_to_disk_is_read(tmp_path: Path) -> None:
    DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS[:1])}).save_to_disk(tmp_path / "both")
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    assert load_examples(str(tmp_path / "both"), split="test").to_list() == ROWS[:1]
    assert load_examples(str(tmp_path / "one")).to_list() == ROWS
    with pytest.raises(DataNotFound, match="no split 'validation', only 'train', 'test'"):
        load_examples(str(tmp_path / "both"), split="validation")


def test_nothing_is_written_beside_the_data_nor_into_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf-cache")
    for suffix in (".jsonl", ".json", ".parquet"):
        _write(tmp_path / "data" / f"a{suffix}")
    before = sorted(tmp_path.rglob("*"))
    for suffix in (".jsonl", ".json", ".parquet"):
        load_examples(str(tmp_path / "data" / f"a{suffix}"))
    assert sorted(tmp_path.rglob("*")) == before
    assert not own_cache.exists()


def test_what_is_missing_is_named(tmp_path: Path, connections: list[object]) -> None:
    with pytest.raises(DataNotFound, match=r"'nobody/nothing' .*`hf download --repo-type dataset nobody/nothing`"):
        load_examples("nobody/nothing")
    with pytest.raises(DataNotFound, match="not a file"):
        load_examples(str(tmp_path / "gone.jsonl"))
    file = _write(tmp_path / "data" / "train.jsonl")
    with pytest.raises(DataNotFound, match=r"no file for split 'test' \(found train.jsonl\); expected test.jsonl"):
        load_examples(str(tmp_path / "data"), split="test")
    with pytest.raises(DataNotFound, match="name the held-out file itself"):
        load_examples(str(file), split="test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataNotFound, match="no data files"):
        load_examples(str(tmp_path / "empty"))
    assert not connections


def test_a_data_set_in_the_hub_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / "datasets--nobody--notes"
    _write(repo / "snapshots" / "c0ffee" / "train.jsonl")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_examples("nobody/notes").to_list() == ROWS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", "\n\n", "has no rows"),
        ("a.json", "[]", "has no rows"),
        ("a.jsonl", '{"text": "a"}\nour patient', "JSON parse error: .* in row 1"),
        ("a.jsonl", '{"text": "our patient', "cannot be read as jsonl: JSON parse error"),
        ("a.json", '[{"text": "our patient"]', "Expecting ',' delimiter at line 1"),
        ("a.json", '{"text": "our patient"}', "holds dict, expected a list"),
        ("a.json", '["our patient"]', "cannot be read as json"),
        ("a.json", '[{"text": 1}, {"text": "our patient"}]', "cannot be read as json: ArrowInvalid"),
        ("a.parquet", "our patient", "cannot be read as parquet: ArrowInvalid"),
        ("a.csv", "text\nour patient", r"suffix '\.csv'; data files are \.jsonl, \.json, \.parquet"),
    ],
)
def test_an_unreadable_file_is_named_and_not_quoted(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UnusableData, match=message) as caught:
        load_examples(str(tmp_path / name))
    assert name in str(caught.value)
    assert "our patient" not in str(caught.value)


def test_shards_with_other_columns_and_several_data_sets_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "mixed" / "train-0.jsonl", [{"text": "a"}])
    _write(tmp_path / "mixed" / "train-1.jsonl", [{"text": [1]}])
    with pytest.raises(UnusableData, match="same columns"):
        load_examples(str(tmp_path / "mixed"))
    _write(tmp_path / "two" / "main" / "train.jsonl")
    _write(tmp_path / "two" / "extra" / "train.jsonl")
    with pytest.raises(UnusableData, match=r"several data sets .*: name one of extra, main"):
        load_examples(str(tmp_path / "two"))


def test_a_line_longer_than_a_block_is_read(tmp_path: Path) -> None:
    rows = [{"text": "x" * 3_000_000}, {"text": "y"}]
    assert load_examples(str(_write(tmp_path / "long.jsonl", rows)))["text"][1] == "y"


def test_names_of_the_folder_itself_and_hidden_or_old_files_are_not_splits(tmp_path: Path) -> None:
    """A folder called ``train`` must not make its test file part of the training data."""
    for parent in ("train", "test"):
        _write(tmp_path / parent / "train.jsonl", [{"text": "train"}])
        _write(tmp_path / parent / "test.jsonl", [{"text": "test"}])
        _write(tmp_path / parent / "train-old.jsonl", [{"text": "old"}])
        _write(tmp_path / parent / ".ipynb_checkpoints" / "train.jsonl", [{"text": "hidden"}])
        for split in ("train", "test"):
            assert load_examples(str(tmp_path / parent), split=split)["text"][:] == [split]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_file_in_another_encoding_is_named(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"patients{suffix}"
    text = '{"text": "M\u00fcller"}'
    file.write_bytes((text if suffix == ".jsonl" else f"[{text}]").encode("latin-1"))
    with pytest.raises(UnusableData, match=rf"patients{suffix} cannot be read .* not UTF-8") as error:
        load_examples(str(file))
    assert "ller" not in str(error.value)
