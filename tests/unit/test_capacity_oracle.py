"""Blocks, bytes and tokens of random configurations against vLLM's own planner; weights against its own classes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_toolkit.capacity.config_json import read_config
from recipe_toolkit.capacity.kv_layers import KvFlags, align, layer_caches
from recipe_toolkit.capacity.kv_pool import build_pool
from recipe_toolkit.capacity.ledger import GIB
from recipe_toolkit.capacity.weights import Spread, weigh
from support import require

ORACLE = Path(__file__).parents[1] / "data" / "kv_oracle.py"
WEIGHTS = ORACLE.with_name("weights_oracle.py")
MAKE = Path(__file__).parents[2] / "scripts" / "make-shape-model"
SHAPES = {"llama-8b": 0, "deepseek-v2-lite": 0, "qwen3-next": 2}  # drafts of each
EACH = 60  # configurations of a family
FAMILIES = ("dense", "window", "latent", "sparse", "gdn", "mamba", "kda")


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    """The interpreter of the environment with vLLM."""
    venv = Path(os.environ.get("RECIPE_VLLM_VENV", Path(__file__).parents[2] / ".cache" / "vllm-cpu"))
    require("vllm", (venv / "bin" / "vllm").exists(), f"no vLLM in {venv}: scripts/install-vllm-cpu {venv}")
    return venv / "bin" / "python"


def drawn(family: str, dice: random.Random) -> dict:
    """A configuration: config.json, flags, and the bytes for KV of each pipeline stage."""
    tp, pp = dice.choice((1, 2, 4, 8)), dice.choice((1, 1, 1, 2))
    count = dice.randrange(4, 40)
    config = {"dtype": "bfloat16", "num_hidden_layers": count, "vocab_size": 32000, "intermediate_size": 4096}
    config |= {"hidden_size": 2048, "max_position_embeddings": 1 << 20, "num_attention_heads": 64}
    config |= {"num_key_value_heads": dice.choice((1, 2, 4, 8, 16, 64)), "head_dim": dice.choice((64, 128, 192, 256))}
    case = {
        "family": family,
        "config": config,
        "layers": count,
        "tp": tp,
        "pp": pp,
        "dcp": 1,
        "drafts": 0,
        "cache_dtype": dice.choice(("auto", "fp8", "bfloat16", "fp8_e4m3")),
        "ssm_dtype": dice.choice(("float32", "bfloat16")),
        "block_size": dice.choice((None, None, 16, 32, 64, 128)),
        "default_block": 16,
        "align": False,
        "unified": False,
        "packed": False,
        "longest": dice.randrange(512, 200_000),
        "in_flight": dice.choice((2048, 8192, 32768)),
    }
    FILL[family](case, config, dice)
    case["memory"] = [dice.randrange(2 * GIB, 200 * GIB) for _ in range(case["pp"])]
    return case


def _dense(case: dict, config: dict, dice: random.Random) -> None:
    config["architectures"] = [dice.choice(("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen2ForCausalLM"))]
    case["kinds"] = ["full"] * case["layers"]


def _window(case: dict, config: dict, dice: random.Random) -> None:
    config |= {"architectures": ["LlamaForCausalLM"], "sliding_window": dice.choice((128, 1000, 4096))}
    every = dice.choice((1, 2, 3, 6))
    kinds = ["full" if every == 1 or at % every == every - 1 else "window" for at in range(case["layers"])]
    if dice.random() < 0.2:
        kinds = ["window"] * case["layers"]
    config["layer_types"] = [{"full": "full_attention", "window": "sliding_attention"}[kind] for kind in kinds]
    case["kinds"], case["unified"] = kinds, dice.random() < 0.3 and "full" in kinds


def _latent(case: dict, config: dict, dice: random.Random) -> None:
    config |= {"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    config |= {"q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": case["layers"]}
    case["drafts"] = dice.choice((0, 1, 3))
    config["num_nextn_predict_layers"] = 1
    case["dcp"] = dice.choice([size for size in (1, 2, 4) if case["tp"] % size == 0])
    case["default_block"] = 64
    case["kinds"] = ["latent"] * (case["layers"] + bool(case["drafts"]))


def _sparse(case: dict, config: dict, dice: random.Random) -> None:
    _latent(case, config, dice)
    config |= {"architectures": ["GlmMoeDsaForCausalLM"], "index_topk": 2048, "index_n_heads": 32}
    config |= {"index_head_dim": 128, "index_topk_freq": dice.choice((1, 4)), "index_skip_topk_offset": 3}
    built = [max(at - 2, 0) % config["index_topk_freq"] == 0 for at in range(case["layers"])]
    kinds = ["sparse" if one else "latent" for one in built]
    case["kinds"] = [*kinds, *(["sparse"] if case["drafts"] else [])]
    case["packed"] = case["cache_dtype"].startswith("fp8") and dice.random() < 0.5


def _gdn(case: dict, config: dict, dice: random.Random) -> None:
    case["layers"] = config["num_hidden_layers"] = count = dice.randrange(2, 12) * 4
    config |= {"architectures": ["Qwen3_5ForCausalLM"], "linear_num_key_heads": dice.choice((8, 16, 32))}
    config |= {"linear_num_value_heads": dice.choice((32, 64, 128)), "linear_conv_kernel_dim": 4}
    config |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "mtp_num_hidden_layers": 1}
    case["drafts"], case["align"] = dice.choice((0, 0, 1, 3)), dice.random() < 0.3
    case["block_size"] = dice.choice((None, None, 32, 2176))
    case["kinds"] = ["full" if at % 4 == 3 else "state" for at in range(count)] + ["full"] * bool(case["drafts"])


def _mamba(case: dict, config: dict, dice: random.Random) -> None:
    pattern = "".join(dice.choice(("M-", "M-", "ME", "M*-", "M*")) for _ in range(dice.randrange(4, 20))) + "M*"
    config |= {"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": pattern, "mamba_head_dim": 64}
    config |= {"mamba_num_heads": dice.choice((64, 128)), "n_groups": 8, "ssm_state_size": dice.choice((64, 128))}
    config |= {"conv_kernel": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    config |= {"moe_shared_expert_intermediate_size": 512, "n_shared_experts": 1}
    case["layers"], case["pp"], case["align"] = len(pattern), 1, dice.random() < 0.3
    case["kinds"] = [{"M": "state", "*": "full"}.get(sign, "none") for sign in pattern]


def _kda(case: dict, config: dict, dice: random.Random) -> None:
    case["layers"] = config["num_hidden_layers"] = count = dice.randrange(2, 12) * 4
    states = [at for at in range(1, count + 1) if at % 4]
    linear = {"head_dim": 128, "num_heads": dice.choice((16, 32, 64)), "short_conv_kernel_size": 4}
    linear |= {"kda_layers": states, "full_attn_layers": list(range(4, count + 1, 4))}
    config |= {"architectures": ["KimiLinearForCausalLM"], "linear_attn_config": linear, "num_shared_experts": 1}
    config |= {"kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    config |= {"v_head_dim": 128, "num_experts": 16, "num_experts_per_token": 2, "moe_intermediate_size": 512}
    case["block_size"], case["align"] = dice.choice((None, None, 64, 1024)), dice.random() < 0.3
    case["ssm_dtype"] = dice.choice(("auto", "float32", "bfloat16"))
    case["kinds"] = ["latent" if at % 4 == 3 else "state" for at in range(count)]


FILL = {
    "dense": _dense,
    "window": _window,
    "latent": _latent,
    "sparse": _sparse,
    "gdn": _gdn,
    "mamba": _mamba,
    "kda": _kda,
}


def ours(case: dict) -> dict:
    """The same from the toolkit."""
    model = read_config(case["config"])
    flags = KvFlags(
        tp=case["tp"],
        pp=case["pp"],
        dcp=case["dcp"],
        cache_dtype=case["cache_dtype"],
        ssm_dtype=case["ssm_dtype"],
        block_size=case["block_size"],
        default_block=case["default_block"],
        drafts=case["drafts"],
        mtp=case["drafts"] > 0,
        in_flight=case["in_flight"],
        ds_mla=case["packed"],
        unified=case["unified"],
        align=case["align"],
    )
    pool = build_pool(model, flags)
    blocks, need = pool.blocks(case["memory"]), pool.request_blocks(case["longest"])
    found = align(model, flags)
    block = found.block if found else next(cache.block for caches in layer_caches(model, flags) for cache in caches)
    if not pool.requests(blocks, case["longest"]):
        return {"refused": True, "block": block}
    return {
        "block": block,
        "blocks": blocks,
        "block_bytes": list(pool.block_bytes),
        "groups": len(pool.groups),
        "tokens": pool.tokens(blocks, case["longest"]),
        "concurrency": blocks / need,
    }


def asked(python: Path, script: Path, question: list) -> list:
    """What a script found out in the environment with vLLM."""
    quiet = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [python, script],
        input=json.dumps(question),
        env={**os.environ, **quiet, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("found: "))
    return json.loads(line.removeprefix("found: "))


@pytest.fixture(scope="module")
def planned(vllm_python) -> dict[str, list[tuple[dict, dict]]]:
    """(configuration, what vLLM plans for it) of every family, from one start of vLLM."""
    cases = []
    for family in FAMILIES:
        dice = random.Random(f"capacity of {family}")  # the same on every machine
        cases += [drawn(family, dice) for _ in range(EACH)]
    found = asked(vllm_python, ORACLE, cases)
    pairs = list(zip(cases, found, strict=True))
    return {family: [pair for pair in pairs if pair[0]["family"] == family] for family in FAMILIES}


@pytest.mark.vllm
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_and_bytes_are_those_of_vllms_planner(planned, family):
    refused = 0
    for case, theirs in planned[family]:
        mine = ours(case)
        if "refused" in theirs:
            refused += 1
            assert "refused" in mine, (case, theirs)
            assert mine["block"] == theirs["block"], case
        else:
            assert mine == theirs, case
    assert refused < EACH / 2


@pytest.mark.vllm
def test_weights_are_those_of_vllms_own_classes(vllm_python, tmp_path):
    """Grouped-query and latent attention, experts, gated delta nets and MTP."""
    for name in SHAPES:
        subprocess.run([sys.executable, MAKE, name, tmp_path / name], check=True)
    theirs = asked(vllm_python, WEIGHTS, [[str(tmp_path / name), drafts] for name, drafts in SHAPES.items()])
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in SHAPES]
    mine = [
        weigh(read_config(config), Spread(), mtp=drafts > 0).whole
        for config, drafts in zip(configs, SHAPES.values(), strict=True)
    ]
    assert mine == pytest.approx(theirs, rel=1e-6)  # a gate's A_log has 32 bits in vLLM, and 16 in files
