"""The arithmetic of capacity against published figures, logs of real workers, and by hand."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_toolkit.capacity.architecture import Architecture
from recipe_toolkit.capacity.assess import Capacity, assess
from recipe_toolkit.capacity.card import Card
from recipe_toolkit.capacity.config_json import READERS, read_config
from recipe_toolkit.capacity.gpus import gpu_of
from recipe_toolkit.capacity.handshake import check_handshake
from recipe_toolkit.capacity.kv_layers import KvFlags, align, state_bytes, token_bytes
from recipe_toolkit.capacity.kv_pool import build_pool
from recipe_toolkit.capacity.ledger import GIB, KIB, MIB
from recipe_toolkit.capacity.logs import calibrated, compared, merged, read_log
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.capacity.weights import Spread, stage_layers, weigh
from recipe_toolkit.model_files import _shipped, find_model
from recipe_toolkit.recipe_loader import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
QWEN = "hf:Inferact/Qwen3.8-2.4T-A95B-NVFP4"


def shipped(name: str) -> Architecture:
    found = _shipped(name)
    assert found is not None
    return read_config(found.card.config)


def qwen_flags(tp: int, drafts: int, **more) -> KvFlags:
    """As the published recipes serve Qwen3.8: KV in FP8, states in 16 bits."""
    return KvFlags(tp=tp, drafts=drafts, mtp=drafts > 0, cache_dtype="fp8", ssm_dtype="bfloat16", **more)


def role(recipe: str, name: str, *sets: str) -> Capacity:
    loaded = load_recipe(RECIPES / recipe, sets).recipe
    found = find_model(loaded, None)
    assert found is not None
    (chosen,) = (item for item in loaded.roles if item.name == name)
    return assess(loaded, chosen, found.card, gpu_of(loaded.resources.gpu))


def test_weights_are_the_checkpoints_to_the_byte():
    whole = weigh(shipped(QWEN), Spread(), mtp=True)
    assert whole.whole == 1_447_265_951_488  # total_size of its index
    by_term = {line.term: line.value / GIB for line in whole.lines}
    assert round(by_term["experts"]) == 1242
    assert round(by_term["MTP experts"], 2) == 13.5
    rest = sum(value for term, value in by_term.items() if term != "experts" and not term.startswith("MTP"))
    assert round(rest, 1) == 91.2
    # nvidia/GLM-5.2-NVFP4 is published as 464.8 GB, QuantTrio's mix as 405,459,090,304 bytes: its router has 32 bits.
    assert round(weigh(shipped("glm-5.2-nvfp4"), Spread(), mtp=True).whole / 1e9, 1) == 464.8
    mix = weigh(shipped("glm-5.2-int4-int8mix"), Spread(), mtp=True).whole
    assert mix + 76 * 256 * 6144 * 2 == pytest.approx(405_459_090_304, rel=2e-6)
    assert weigh(shipped("llama-3.1-8b"), Spread(), mtp=False).whole == 16_060_522_496


# Layout, drafts, GiB a GPU as published; those divide the router by TP, which vLLM keeps whole on each rank.
@pytest.mark.parametrize(
    ("spread", "mtp", "published"),
    [
        (Spread(8), False, 166.7),
        (Spread(8), True, 168.5),
        (Spread(4, 1, 2), True, 180.0),
        (Spread(2, 1, 4), True, 203.1),
        (Spread(4, 1, 4), False, 100.4),
        (Spread(4, 1, 4), True, 101.6),
        (Spread(1, 1, 16), False, 168.83),
        (Spread(1, 1, 8), False, 246.4),
    ],
    ids=lambda item: str(item),
)
def test_weights_of_a_gpu(spread, mtp, published):
    found = weigh(shipped(QWEN), spread, mtp=mtp)
    router = next(line.value for line in found.lines if line.term == "router")
    replicated = router * (1 - 1 / spread.tp)
    kv_heads = 23 * 2 * 1024 * 8192 * 2 * (1 / 4 - 1 / 8 if spread.tp == 8 else 0)
    assert (found.local - replicated - kv_heads) / GIB == pytest.approx(published, abs=0.09)


def test_a_worker_of_ep16_logged_what_is_counted():
    assert weigh(shipped(QWEN), Spread(1, 1, 16), mtp=False).local / GIB == pytest.approx(168.89, abs=0.04)


def test_state_and_token_of_the_hybrid():
    model = shipped(QWEN)
    state = model.layers[0].mixer
    assert state_bytes(state, qwen_flags(1, 0), model) == (120 * KIB, 4 * MIB)
    assert state_bytes(state, qwen_flags(1, 3), model) == (240 * KIB, 4 * MIB)
    assert state_bytes(state, KvFlags(), model) == (120 * KIB, 8 * MIB)  # config.json's float32
    assert token_bytes(model.layers[3].mixer, qwen_flags(1, 0), model) == 2 * KIB


@pytest.mark.parametrize(
    ("tp", "drafts", "block"),
    [(1, 0, 2112), (2, 0, 2112), (4, 0, 2112), (8, 0, 1056), (1, 3, 2176), (2, 3, 2176), (4, 3, 2176), (8, 3, 1088)],
)
def test_blocks_of_the_hybrid(tp, drafts, block):
    found = align(shipped(QWEN), qwen_flags(tp, drafts))
    assert found.block == block
    if (tp, drafts) == (1, 0):
        assert found.page == 4.125 * MIB
        assert (found.page - found.state) / found.state == pytest.approx(0.0019, abs=5e-5)  # "0.19%" of vLLM's log


# TP, drafts, --block-size, MiB of a request of 9,216 tokens.
@pytest.mark.parametrize(
    ("tp", "drafts", "forced", "request_mib"),
    [
        (8, 0, None, 142.3),
        (8, 3, None, 267.8),
        (8, 3, 2176, 433.5),
        (4, 3, None, 433.5),
        (2, 3, None, 867.0),
        (4, 0, None, 189.8),
        (1, 0, None, 759.0),
    ],
)
def test_requests_of_the_hybrid(tp, drafts, forced, request_mib):
    pool = build_pool(shipped(QWEN), qwen_flags(tp, drafts, block_size=forced))
    assert pool.request_bytes(9216) / MIB == pytest.approx(request_mib, abs=0.051)
    assert len(pool.groups) == 4
    assert pool.padding == (3 if drafts else 0)


def test_more_blocks_for_a_longer_request():
    pool = build_pool(shipped(QWEN), qwen_flags(8, 0))
    assert pool.request_blocks(9240) == 12
    assert [group.blocks(9240, pool.flags) for group in pool.groups].count(1) == 3
    aligned = build_pool(shipped(QWEN), qwen_flags(8, 0, align=True))
    assert aligned.request_blocks(9240) == 15  # with prefix caching a state keeps another


# GiB of weights as published, so that the rest of the published table follows from it.
@pytest.mark.parametrize(
    ("tp", "dp", "drafts", "weights", "requests"),
    [
        (8, 1, 0, 166.66, (349, 526)),
        (8, 1, 3, 168.49, (179, 272)),
        (4, 2, 3, 180.02, (83, 141)),
        (2, 4, 3, 203.09, (14, 43)),
        (4, 4, 0, 100.42, (619, 752)),
        (4, 4, 3, 101.55, (268, 326)),
        (1, 16, 0, 168.83, (62, 95)),
    ],
)
def test_published_requests_follow_from_the_published_weights(tp, dp, drafts, weights, requests):
    pool = build_pool(shipped(QWEN), qwen_flags(tp, drafts))
    ends = (0.92 * 276.62 - weights - 2.4 - 3.7 - graphs for graphs in (33.06, 8.57))
    found = [int(end * GIB // pool.request_bytes(9216)) for end in ends]
    assert found == pytest.approx(requests, abs=1)


def test_points_of_the_frontier_fit_as_published():
    c1024 = role("qwen3.8-2.4t/gb300-8k1k-c1024.yaml", "decode")
    assert c1024.fits[0].length == 9216
    assert 256 * c1024.pool.request_bytes(9216) / GIB == pytest.approx(108.4, abs=0.05)
    assert c1024.fits[0].low >= 256  # the last point with MTP that surely fits
    c2560 = role("qwen3.8-2.4t/gb300-8k1k-c2560.yaml", "decode")
    assert 640 * c2560.pool.request_bytes(9216) / GIB == pytest.approx(118.6, abs=0.05)
    assert c2560.fits[0].low < 640 <= c2560.fits[0].high
    drafted = role(
        "qwen3.8-2.4t/gb300-8k1k-c2560.yaml",
        "decode",
        "engine.args.speculative-config={method: mtp, num_speculative_tokens: 3}",
    )
    assert 640 * drafted.pool.request_bytes(9216) / GIB == pytest.approx(270.9, abs=0.06)
    assert drafted.fits[0].high < 640
    assert any(check.verdict == "bad" and "2,560 in flight" in check.text for check in drafted.checks)


@pytest.mark.parametrize("name", ["c1-4", "c8-16", "c32-64", "c128", "c256", "c512", "c1024", "c2560"])
def test_every_published_point_loads_and_shakes_hands(name):
    file = f"qwen3.8-2.4t/gb300-8k1k-{name}.yaml"
    prefill, decode = role(file, "prefill"), role(file, "decode")
    assert (prefill.loads, decode.loads) == ("yes", "yes")
    (check,) = check_handshake(load_recipe(RECIPES / file).recipe, prefill, decode)
    assert check.verdict == "ok"
    assert not [item for item in decode.checks if item.verdict == "bad"]


def test_one_instance_of_dep8_does_not_fit():
    sets = ("roles.serve.parallel.tp=1", "roles.serve.parallel.dp=8", "engine.args.speculative-config=null")
    found = role("qwen3.8-2.4t/gb300-prefill-tp2dp4.yaml", "serve", *sets)
    assert found.loads == "no"
    assert max(found.budget.high) < 0


def test_handshake_goes_by_the_version():
    file = RECIPES / "qwen3.8-2.4t/gb300-8k1k-c8-16.yaml"
    for version, verdict in (("0.26.0", "bad"), ("0.29.0", "doubtful"), ("0.32.0", "ok")):
        sets = ["engine.args.block-size=null", f"engine.version={version}"]
        name = "qwen3.8-2.4t/gb300-8k1k-c8-16.yaml"
        prefill, decode = role(name, "prefill", *sets), role(name, "decode", *sets)
        (check,) = check_handshake(load_recipe(file, sets).recipe, decode, prefill)
        assert "1,088" in check.text
        assert check.verdict == verdict
    prefill = role("qwen3.8-2.4t/gb300-8k1k-c128.yaml", "prefill", "engine.args.speculative-config=null")
    decode = role("qwen3.8-2.4t/gb300-8k1k-c128.yaml", "decode")
    (check,) = check_handshake(load_recipe(file).recipe, prefill, decode)
    assert check.verdict == "bad"
    assert "must be the same" in check.text


def test_llama_on_an_h200_is_what_its_log_says():
    # vLLM 0.22 on an H200: Llama 8B with a vocabulary of 512, 13.06 GiB of weights and 113.78 GiB for KV.
    found = _shipped("llama-3.1-8b")
    model = read_config({**found.card.config, "vocab_size": 512})
    assert weigh(model, Spread(), mtp=False).local / GIB == pytest.approx(13.06, abs=0.06)
    pool = build_pool(model, KvFlags())
    assert pool.request_bytes(16) == 16 * 128 * KIB
    assert pool.blocks((113.78 * GIB,)) * 16 == pytest.approx(932_080, abs=100)


@pytest.mark.parametrize(
    ("gpu", "args", "block"),
    [("H200", {}, 16), ("H200", {"kv-cache-dtype": "fp8"}, 64), ("H200", {"attention-backend": "FLASHMLA"}, 64),
     ("B300", {}, 64)],
)  # fmt: skip
def test_the_kernel_of_latent_attention_decides_its_block(tmp_path, gpu, args, block):
    """vLLM 0.22's platform for an H200 chose FLASH_ATTN_MLA and left the block at 16."""
    make = Path(__file__).parents[2] / "scripts" / "make-shape-model"
    subprocess.run([sys.executable, make, "deepseek-v2-lite", tmp_path], check=True)
    sets = [f"resources.gpu={gpu}", *(f"engine.args.{key}={value}" for key, value in args.items())]
    loaded = load_recipe(RECIPES / "llama-8b-shape/h200-agg.yaml", sets).recipe
    config = json.loads((tmp_path / "config.json").read_text())
    capacity = assess(loaded, loaded.roles[0], Card("lite", config, "here"), gpu_of(gpu))
    assert [group.cache.block for group in capacity.pool.groups] == [block]


def test_kv_tokens_of_four_sparks_are_linear_in_the_batch():
    # 355,840, 323,712 and 259,968 tokens of KV at 2,048, 4,096 and 8,192 batched tokens: a straight line.
    pool = role("glm-5.2/spark-tp4.yaml", "serve").pool
    assert pool.block_bytes == (64 * (79 * 656 + 22 * 132),)
    blocks = {batch: tokens / 128 for batch, tokens in ((2048, 355_840), (4096, 323_712), (8192, 259_968))}
    assert all(number == int(number) for number in blocks.values())  # blocks of 64 tokens on each of two DCP ranks
    slope = (blocks[2048] - blocks[8192]) / 6144
    assert blocks[2048] - 2048 * slope == pytest.approx(blocks[4096], abs=2)
    assert slope * pool.block_bytes[0] / 1e3 == pytest.approx(427, abs=1)  # KB of a batched token

    for batch, tokens in ((2048, 355_840), (4096, 323_712), (4096, 327_424), (8192, 259_968)):
        low, high = role("glm-5.2/spark-tp4.yaml", "serve", f"engine.args.max-num-batched-tokens={batch}").tokens
        assert low * 0.999 <= tokens <= high * 1.001
        assert high / low < 1.02


def test_stages_of_a_pipeline_are_vllms():
    assert [len(stage_layers(10, 4, stage)) for stage in range(4)] == [2, 3, 3, 2]
    assert [*stage_layers(10, 4, 1)] == [2, 3, 4]
    weights = weigh(shipped("llama-3.1-8b"), Spread(pp=2), mtp=False)
    assert sum(weights.stages) == weights.whole


def test_one_block_is_kept_back():
    pool = build_pool(shipped("llama-3.1-8b"), KvFlags())
    assert [pool.requests(blocks, 64) for blocks in (0, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]
    assert pool.tokens(8, 64) == 128  # vLLM's log counts it in


def test_what_is_not_known_is_refused_by_name():
    with pytest.raises(UnknownModel, match="attention of LlamaFooForCausalLM is not known"):
        read_config({"architectures": ["LlamaFooForCausalLM"]})
    config = dict(_shipped("llama-3.1-8b").card.config)
    with pytest.raises(UnknownModel, match="lacks intermediate_size"):
        read_config({key: value for key, value in config.items() if key != "intermediate_size"})
    with pytest.raises(UnknownModel, match="quantization squeezed is not known"):
        read_config({**config, "quantization_config": {"quant_method": "squeezed"}})
    with pytest.raises(UnknownModel, match="kv-cache-dtype nvfp4 is not known"):
        build_pool(read_config(config), KvFlags(cache_dtype="nvfp4"))
    with pytest.raises(UnknownModel, match="the memory of the GPU any is not known"):
        gpu_of("any")
    with pytest.raises(UnknownModel, match="names no architecture"):
        read_config({})
    for broken in ({"num_hidden_layers": "x"}, {"num_hidden_layers": None}, {"hidden_size": [1]}):
        with pytest.raises(UnknownModel, match="a field of another kind"):
            read_config({**config, **broken})


def test_shipped_facts_have_a_source_and_are_found_by_their_names():
    folder = Path(__file__).parents[2] / "slurm/recipe_toolkit/capacity/models"
    names = json.loads((folder / "names.json").read_text(encoding="utf-8"))
    assert {file.stem for file in folder.glob("*.json")} == {*names, "names"}
    for file in names:
        data = json.loads((folder / f"{file}.json").read_text(encoding="utf-8"))
        assert data["source"].startswith("https://")
        assert data["config"]["architectures"][0] in READERS
        assert _shipped(file) is not None


# As vLLM 0.22 logs on an H200 (Llama 8B's shape with a vocabulary of 512), its figures those of a real run.
LOG_22 = """
(EngineCore pid=7) INFO [gpu_model_runner.py:4900] Model loading took 13.06 GiB memory and 1.902 seconds
(EngineCore pid=7) INFO [gpu_model_runner.py:5900] Estimated CUDA graph memory: 0.62 GiB total
(EngineCore pid=7) INFO [gpu_worker.py:430] Available KV cache memory: 113.78 GiB
(EngineCore pid=7) INFO [kv_cache_utils.py:1700] GPU KV cache size: 932,080 tokens
(EngineCore pid=7) INFO [kv_cache_utils.py:1705] Maximum concurrency for 16,384 tokens per request: 56.89x
(EngineCore pid=7) INFO [gpu_model_runner.py:6000] Graph capturing finished in 9 secs, took 0.63 GiB
""".splitlines()
LOG_32 = """
Worker_TP0 INFO Setting attention block size to 1056 tokens to ensure that attention page size is >= mamba page size.
Worker_TP0 INFO Model loading took 168.89 GiB memory and 300.1 seconds
Worker_TP1 INFO Model loading took 168.91 GiB memory and 300.1 seconds
Worker_TP0 INFO Available KV cache memory: 46.5 GiB
GPU KV cache size: 394,649 tokens, Maximum concurrency for 10,240 tokens per request: 38.54x
CUDA graph pool memory: 8.57 GiB (actual), 33.06 GiB (estimated), difference: 24.49 GiB (285.8%).
Free memory on device cuda:0 (275.9/276.62 GiB) on startup. Desired GPU memory utilization is (0.92, 254.49 GiB).
""".splitlines()


def test_engines_logs_are_understood():
    log = read_log(LOG_22)
    assert (log.weights, log.kv, log.tokens) == (13.06 * GIB, 113.78 * GIB, 932_080)
    assert (log.concurrency, log.length, log.estimate, log.graphs) == (56.89, 16_384, 0.62 * GIB, 0.63 * GIB)
    log = read_log(LOG_32)
    assert (log.block, log.weights, log.estimate, log.total) == (1056, 168.91 * GIB, 33.06 * GIB, 276.62 * GIB)
    assert (log.tokens, log.concurrency) == (394_649, 38.54)
    assert not read_log(["INFO nothing of 5 GiB", "INFO all tokens are well"])
    rank = read_log(["Available KV cache memory: 40.0 GiB"])
    assert merged([log, rank]).kv == 40 * GIB


def test_a_log_takes_the_place_of_what_is_assumed():
    loaded = load_recipe(RECIPES / "llama-8b-shape/h200-agg.yaml").recipe
    card = _shipped("llama-3.1-8b").card
    card = card._replace(config={**card.config, "vocab_size": 512})
    before = assess(loaded, loaded.roles[0], card, gpu_of("H200"))
    assert before.tokens[0] < 932_080 < before.tokens[1]
    log = read_log(LOG_22)
    after = assess(loaded, loaded.roles[0], card, gpu_of("H200"), calibrated(before, log, "run x"))
    assert after.tokens == pytest.approx((932_080, 932_080), abs=100)  # the log's GiB have two places
    rows = {what: (predicted, logged) for what, predicted, logged in compared(after, log)}
    assert rows["requests of 16,384 tokens"] == ("56.89", "56.89")
    assert rows["left for KV"] == ("113.78 GiB", "113.78 GiB")


def test_a_hybrids_log_of_another_cache_agrees():
    # bf16 KV, states in 32 bits by config.json's word or 16: 46.5 GiB held 38.54 requests of 10,240 tokens.
    pool = build_pool(shipped(QWEN), KvFlags(ssm_dtype="bfloat16"))
    assert pool.groups[-1].cache.block == 1056
    blocks = pool.blocks((46.5 * GIB,))
    assert blocks / pool.request_blocks(10_240) == pytest.approx(38.54, abs=0.06)


def test_a_context_that_vllm_fits_itself_is_no_reason_to_refuse():
    name = "glm-5.2/b300-8p1d-dp2.yaml"
    sets = ("engine.args.max-model-len={}", "roles.prefill.args.enforce-eager=true", "benchmarks.2.isl=30000")
    whole = [item.format(1_048_576) for item in sets]
    assert role(name, "prefill", *whole).loads == "no"
    fitted = role(name, "prefill", *(item.format(-1) for item in sets))
    assert fitted.loads == "doubtful"
    assert fitted.settings.longest == 1_048_576


def test_flags_whose_memory_is_not_known():
    for flag in ("engine.args.cpu-offload-gb=10", "engine.args.enable-lora=true"):
        with pytest.raises(UnknownModel, match="is not known"):
            role("llama-8b-shape/h200-agg.yaml", "serve", flag)
    with pytest.raises(UnknownModel, match="quantizes as it loads"):
        role("llama-8b-shape/h200-agg.yaml", "serve", "engine.args.quantization=fp8")
    # One that only names what config.json says already.
    role("glm-5.2/b300-colocated.yaml", "serve", "engine.args.quantization=modelopt_fp4")


def test_a_damaged_config_is_refused_or_understood():
    """Fields that are missing, of another kind or of no sense: a number, or UnknownModel, never another error."""
    dice = random.Random("damaged")
    odd = (0, -1, 1, 7, 1 << 70, 1.5, "x", "", None, [], {}, [1], {"a": 1}, True)
    recipes = {
        "qwen3.8-2.4t-a95b-nvfp4": ("qwen3.8-2.4t/gb300-8k1k-c128.yaml", "decode"),
        "glm-5.2-int4-int8mix": ("glm-5.2/spark-tp4.yaml", "serve"),
        "llama-3.1-8b": ("llama-8b-shape/h200-tp2.yaml", "serve"),
    }
    refused = 0
    for name, (file, chosen) in recipes.items():
        recipe = load_recipe(RECIPES / file).recipe
        (part,) = (item for item in recipe.roles if item.name == chosen)
        card = _shipped(name).card
        for _ in range(120):
            config = json.loads(json.dumps(card.config))
            holder = config
            if dice.random() < 0.3 and isinstance(config.get("quantization_config"), dict):
                holder = config["quantization_config"]
            key = dice.choice(sorted(holder))
            if dice.random() < 0.2:
                del holder[key]
            else:
                holder[key] = dice.choice(odd)
            try:
                assess(recipe, part, card._replace(config=config), gpu_of(recipe.resources.gpu))
            except UnknownModel:
                refused += 1
    assert 100 < refused < 350
