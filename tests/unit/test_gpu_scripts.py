"""The scripts around real GPUs, as far as they work without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ("vllm", "vllm-router", "aiperf", "recipe")


def test_the_document_says_what_was_measured() -> None:
    rows = ROOT / "docs" / "gpus.jsonl"
    subprocess.run([sys.executable, ROOT / "scripts" / "make-gpu-table", rows, "--check"], check=True)


def test_another_figure_is_found(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (ROOT / "docs" / "gpus.jsonl").read_text().splitlines()]
    next(row for row in rows if row["what"] == "launcher")["recipe"]["total_tps"] += 1
    other = tmp_path / "rows.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [sys.executable, ROOT / "scripts" / "make-gpu-table", other, "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "make-gpu-table" in done.stderr


def test_a_kit_is_unpacked_with_its_programs(tmp_path: Path) -> None:
    work, kit, target = tmp_path / "work", tmp_path / "kit", tmp_path / "to"
    (work / "vllm" / "vllm_router").mkdir(parents=True)
    (work / "vllm" / "vllm_router" / "__init__.py").touch()
    (work / "vllm" / "vllm_router" / "launch_router.py").write_text("import sys; print('router', *sys.argv[1:])")
    for name in ("aiperf", "recipe"):
        (work / name).mkdir()
    kit.mkdir()
    packed = subprocess.run(["tar", "-C", work, "-cJ", "vllm", "aiperf", "recipe"], check=True, capture_output=True)
    half = len(packed.stdout) // 2
    (kit / "kit.00").write_bytes(packed.stdout[:half])
    (kit / "kit.01").write_bytes(packed.stdout[half:])
    subprocess.run(
        [ROOT / "scripts" / "unpack-gpu-kit", kit, target],
        check=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
    )
    assert {path.name for path in (target / "bin").iterdir()} == {*PROGRAMS, "python"}
    said = subprocess.run([target / "bin" / "vllm-router", "--port", "1"], check=True, capture_output=True, text=True)
    assert said.stdout == "router --port 1\n"
    # The tests are those of a checkout, and so is the package then.
    where = [target / "bin" / "python", "-c", "import sys; print(*sys.path[1:4], sep=':')"]
    said = subprocess.run(where, check=True, capture_output=True, text=True, env={"PYTHONPATH": "/mine"})
    assert said.stdout == f"/mine:{target}/recipe:{target}/vllm\n"
