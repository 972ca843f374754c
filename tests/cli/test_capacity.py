"""``recipe capacity`` as a user types it."""

from __future__ import annotations

import functools
import json
import struct
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from plankit import RECIPES, ROOT
from recipe_toolkit.cluster_loader import load_cluster
from recipe_toolkit.document import dump_yaml
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.rundir import write_json
from submit_support import make_run

QWEN = ROOT / "recipes" / "qwen3.8-2.4t"
GLM = ROOT / "recipes" / "glm-5.2"
PLAIN = RECIPES / "clusters" / "plain.yaml"
TINY = ROOT / "recipes" / "tiny"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}


@pytest.fixture
def model(tmp_path):
    """A model's folder: a config.json, and a safetensors file of a header alone."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 900_000]},
            "b": {"dtype": "BF16", "shape": [2], "data_offsets": [900_000, 918_784]},
        }
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


def test_every_line_of_the_arithmetic(recipe):
    done = recipe("capacity", QWEN / "gb300-8k1k-c1024.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    decode = done.stdout[done.stdout.index("\ndecode: 1 x TP4 DP4 EP on 16 x GB300") :]
    for part in (
        "experts                 77.63 GiB  = 1,242.00 GiB / 16, NVFP4",
        "recurrent state, a layer                         1 MiB  = 128 heads / TP 4 x 128 x 128 x 2 B",
        "3 x (1 + 3 drafts) + ceil(9,216 / 2,176) = 17 blocks x 25.5 MiB",
        "276.62 GiB x gpu-memory-utilization 0.92",
        "8k1k: 1,024 in flight are 256 a rank of",
        "NIXL: blocks of 2,176 tokens on both sides",
    ):
        assert part in decode
    answers = recipe("capacity", QWEN / "gb300-8k1k-c1024.yaml", "--answers").stdout
    assert "recurrent state" not in answers
    assert "requests that KV holds" in answers


def test_json_has_ranges_and_the_ledger(recipe):
    done = recipe("capacity", GLM / "spark-tp4.yaml", "--json")
    assert done.returncode == 0
    (role,) = json.loads(done.stdout)["roles"]
    assert role["kv_block_tokens"] == 64
    assert role["gpu"]["name"] == "GB10"
    low, high = role["kv_tokens"]
    assert low <= 323_712 <= high
    assert [chapter["chapter"] for chapter in role["ledger"]] == ["weights of a GPU", "KV cache", "memory of a GPU"]
    weights = role["ledger"][0]["lines"]
    assert sum(line["value"] for line in weights[:-1]) == pytest.approx(role["weights_bytes"])


def test_what_cannot_load_is_an_exit_code(recipe):
    sets = ["-s", "roles.decode.parallel={tp: 1, dp: 8, ep: true}"]
    done = recipe("capacity", QWEN / "gb300-8k1k-c1-4.yaml", "--answers", *sets)
    assert done.returncode == 1
    assert "NO       it cannot load: weights and what else is needed exceed what vLLM takes" in done.stdout


def test_layouts_side_by_side(recipe):
    done = recipe("capacity", QWEN / "gb300-8k1k-c1024.yaml", "--topologies", 8)
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines() if "EP" in line]
    assert [row[:2] for row in rows[:3]] == [["TP8", "EP"], ["TP4", "DP2"], ["TP2", "DP4"]]
    assert "does not fit" in done.stdout
    data = json.loads(recipe("capacity", QWEN / "gb300-8k1k-c1024.yaml", "--topologies", 8, "--json").stdout)
    assert {row["layout"] for row in data["roles"]["decode"]} == {"TP8 EP", "TP4 DP2 EP", "TP2 DP4 EP", "DP8 EP"}


def test_model_from_a_folder(recipe, model):
    done = recipe("capacity", TINY / "cpu-agg.yaml", "--model", model)
    assert done.returncode == 0, done.stderr
    assert "KV cache of a rank: 8,192 blocks, 262,144 tokens" in done.stdout
    assert "the checkpoint has 918,784 B of tensors, the arithmetic 918,784 B (+0.00%)" in done.stdout
    (model / "model.safetensors").write_bytes(b"short")
    broken = recipe("capacity", TINY / "cpu-agg.yaml", "--model", model)
    assert broken.returncode == 1
    assert "model.safetensors: no safetensors file" in broken.stderr
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 9_000_000}}))
    other = recipe("capacity", TINY / "cpu-agg.yaml", "--model", model)
    assert "config.json does not tell of all" in other.stdout


def test_config_from_the_hub(recipe, model, tmp_path):
    """A hub that has config.json of one repository at one revision, and no index."""
    folder = tmp_path / "hub" / "org" / "repo" / "resolve" / "v1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((model / "config.json").read_text())
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path / "hub")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": "", "no_proxy": "*"}
        asked = ["capacity", TINY / "cpu-agg.yaml", "--hub", "--answers", "-s"]
        done = recipe(*asked, "model.path=hf:org/repo@v1", **hub)
        assert done.returncode == 0, done.stderr
        assert "KV cache of a rank: 8,192 blocks" in done.stdout
        done = recipe(*asked, "model.path=hf:org/repo", **hub)
        assert done.returncode == 1
        assert "/org/repo/resolve/main/config.json: HTTP Error 404" in done.stderr
        server.shutdown()


def test_what_is_not_known_is_said(recipe, model):
    done = recipe("capacity", TINY / "cpu-agg.yaml")
    assert done.returncode == 1
    assert "nothing is known of the model tiny" in done.stderr
    done = recipe("capacity", TINY / "gpu-agg.yaml")
    assert "the memory of the GPU any is not known" in done.stderr
    assert recipe("capacity", TINY / "gpu-agg.yaml", "--gpu-memory", 79).returncode == 0
    (model / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["LlamaFooForCausalLM"]}))
    done = recipe("capacity", TINY / "cpu-agg.yaml", "--model", model)
    assert done.stderr.startswith("Error: attention of LlamaFooForCausalLM is not known")
    (model / "config.json").write_text("[")
    done = recipe("capacity", TINY / "cpu-agg.yaml", "--model", model, "--json")
    assert done.returncode == 1
    assert "config.json" in json.loads(done.stdout)["error"]["message"]
    assert "the simulated engine" in recipe("capacity", TINY / "sim-2p1d.yaml").stderr


def test_plan_and_validate_show_it_in_short_and_refuse_what_cannot_load(recipe):
    file, site = QWEN / "gb300-8k1k-c1024.yaml", ROOT / "recipes" / "clusters" / "gb300-nvl72.yaml"
    line = "decode: 102.11 GiB of weights a GPU, 113.2-137.7 GiB for KV: 267-325 requests of 9,216 tokens a rank"
    assert "memory:\n    prefill: 203.49 GiB of weights a GPU" in recipe("plan", file, "-c", site).stdout
    assert f"    {line}\n" in recipe("plan", file, "-c", site).stdout
    done = recipe("validate", file)
    assert done.returncode == 0
    assert f"  {line}\n" in done.stdout
    assert line in json.loads(recipe("validate", file, "--json").stdout)["memory"]
    wrong = ["-s", "roles.decode.parallel={tp: 1, dp: 8, ep: true}"]
    for verb in (["validate", file], ["plan", file, "-c", site]):
        done = recipe(*verb, *wrong)
        assert done.returncode == 1
        assert "roles.decode.parallel: it cannot load: weights and what else is needed exceed" in done.stderr
    # A rehearsal loads no weights.
    assert recipe("plan", file, "-c", site, "--rehearse", *wrong).returncode == 0


def test_prefill_and_decode_that_cannot_shake_hands_are_refused(recipe):
    done = recipe("validate", QWEN / "gb300-8k1k-c8-16.yaml", "-s", "engine.args.block-size=null")
    assert done.returncode == 1
    said = "roles.decode: NIXL: blocks of 2,176 tokens on prefill, 1,088 on decode: vLLM 0.26.1rc1"
    assert said in done.stderr
    assert "block-size: 2176 in engine.args gives both the larger" in done.stderr


def test_what_a_run_logged_takes_the_place_of_what_is_assumed(recipe, model):
    (model / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 32, "hidden_size": 1024}))
    file = recipe.folder / "r.yaml"
    data = {"schema": 1, "name": "r", "extends": str(TINY / "gpu-agg.yaml"), "resources": {"gpu": "H200"}}
    file.write_text(json.dumps({**data, "model": {"path": str(model)}}))
    loaded, site = load_recipe(file), load_cluster(str(PLAIN))
    run = make_run(recipe.folder / "runs", "2026-11-29T12-00-00-r-ab12", state="done")
    run.recipe_lock.write_text(dump_yaml(loaded.data))
    run.cluster_lock.write_text(dump_yaml(site.data))
    write_json(run.plan, build_plan(loaded.recipe, site.cluster).to_json())
    log = run.attempt(0).process_log(0, "serve-0")
    log.parent.mkdir(parents=True)
    asked = ["capacity", file, "--answers", "--calibrate", run.root]
    silent = recipe(*asked)
    assert silent.returncode == 1
    assert "no log of serve says anything of memory" in silent.stderr
    log.write_text("INFO Model loading took 0.07 GiB memory\nINFO Available KV cache memory: 90.26 GiB\n")
    done = recipe(*asked)
    assert done.returncode == 0, done.stderr
    assert "left for KV" in done.stdout
    assert done.stdout.splitlines()[-1].split()[-2:] == ["90.26", "GiB"]
    assert "KV cache of a rank: 369,704 blocks" in done.stdout  # of 16 tokens x 512 B x 32 layers
    (role,) = json.loads(recipe(*asked, "--json").stdout)["roles"]
    assert role["kv_blocks"] == [369_704, 369_704]
    assert [row["what"] for row in role["logged"]] == ["weights a GPU", "left for KV"]
    recipe("report", run.root)
    page = run.report.read_text(encoding="utf-8")
    assert "Memory of a rank" in page
    assert "90.26 GiB" in page
