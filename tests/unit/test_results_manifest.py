from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from recipe_toolkit.results.manifest import hash_file, read_manifest, write_manifest
from recipe_toolkit.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "2026-11-29-tiny-abcd")
    (run.root / "bench" / "c 1").mkdir(parents=True)
    (run.root / "bench" / "c 1" / "ü.json").write_bytes(b"{}")
    run.plan.write_bytes(b"plan")
    run.token.write_bytes(b"secret")
    return run


def test_every_file_but_the_token_and_itself(run: RunDir) -> None:
    write_manifest(run)
    write_manifest(run)
    entries = read_manifest(run.manifest)
    assert list(entries) == ["bench/c 1/ü.json", "plan.json"]
    assert entries["plan.json"].bytes == 4
    assert entries["plan.json"].sha256 == hashlib.sha256(b"plan").hexdigest()
    assert "secret" not in run.manifest.read_text()
    assert json.loads(run.manifest.read_text())["run"] == run.id


def test_large_files_are_read_in_pieces(run: RunDir) -> None:
    big = run.root / "big.log"
    data = os.urandom(1000) * 3000
    big.write_bytes(data)
    assert hash_file(big) == (len(data), hashlib.sha256(data).hexdigest())


def test_links_do_not_lead_out_of_the_folder_nor_to_the_token(run: RunDir, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "passwd").write_text("x")
    (run.root / "file-out").symlink_to(outside / "passwd")
    (run.root / "folder-out").symlink_to(outside)
    (run.root / "loop").symlink_to(run.root)
    (run.root / "broken").symlink_to("nowhere")
    (run.root / "my-token").symlink_to(run.token)
    (run.root / "same").symlink_to("plan.json")
    os.mkfifo(run.root / "pipe")
    write_manifest(run)
    assert list(read_manifest(run.manifest)) == ["bench/c 1/ü.json", "plan.json", "same"]


def test_unfinished_writes_are_left_out(run: RunDir) -> None:
    for name in (".token.x1", ".results.json.y2", ".manifest.json.z3"):
        (run.root / name).write_text("half")
    (run.root / ".hidden").write_text("kept")
    write_manifest(run)
    assert list(read_manifest(run.manifest)) == [".hidden", "bench/c 1/ü.json", "plan.json"]


def test_a_name_that_is_no_text(run: RunDir) -> None:
    (run.root / os.fsdecode(b"bad-\xff.log")).write_bytes(b"x")
    write_manifest(run)
    assert "bad-\\xff.log" in read_manifest(run.manifest)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"schema": 9}',
        '{"schema": 1}',
        '{"schema": 1, "files": {"path": "x"}}',
        '{"schema": 1, "files": [{"path": "x"}]}',
        '{"schema": 1, "files": [[]]}',
        *(
            f'{{"schema": 1, "files": [{{"path": "x", "bytes": {size}, "sha256": "0"}}]}}'
            for size in (-1, "1e999", '"1"')
        ),
        '{"schema": 1, "files": [{"path": 1, "bytes": 1, "sha256": "0"}]}',
    ],
)
def test_what_is_no_manifest(tmp_path: Path, content: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(content)
    with pytest.raises(ValueError):
        read_manifest(path)
