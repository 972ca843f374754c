"""Asks vLLM's own planner: configurations as JSON on stdin, what it plans for each on stdout, after ``found:``.

Run by the interpreter of an environment with vLLM. Layers' specs are vLLM's classes, states' shapes its
calculators', the block of a hybrid its platform's; nothing here is the toolkit's.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from unittest.mock import patch

import torch
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator, MambaStateShapeCalculator
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    SparseCacheRole,
    get_kv_quant_mode,
)
from vllm.v1.kv_cache_layout import KVCacheLayout


def states(case):
    """(shapes, dtypes) of a state, as the model's class asks vLLM's calculators."""
    config, tp, drafts = case["config"], case["tp"], case["drafts"]
    if "linear_num_key_heads" in config:
        shapes = MambaStateShapeCalculator.gated_delta_net_state_shape(
            tp,
            config["linear_num_key_heads"],
            config["linear_num_value_heads"],
            config["linear_key_head_dim"],
            config["linear_value_head_dim"],
            config["linear_conv_kernel_dim"],
            drafts,
        )
        dtypes = MambaStateDtypeCalculator.gated_delta_net_state_dtype(torch.bfloat16, "auto", case["ssm_dtype"])
    elif "linear_attn_config" in config:
        linear = config["linear_attn_config"]
        shapes = MambaStateShapeCalculator.kda_state_shape(
            tp,
            linear["num_heads"],
            linear["head_dim"],
            conv_kernel_size=linear["short_conv_kernel_size"],
            num_spec=drafts,
        )
        dtypes = MambaStateDtypeCalculator.kda_state_dtype(torch.bfloat16, "auto", case["ssm_dtype"])
    else:
        shapes = MambaStateShapeCalculator.mamba2_state_shape(
            tp_world_size=tp,
            intermediate_size=config["mamba_num_heads"] * config["mamba_head_dim"],
            n_groups=config["n_groups"],
            num_heads=config["mamba_num_heads"],
            head_dim=config["mamba_head_dim"],
            state_size=config["ssm_state_size"],
            conv_kernel=config["conv_kernel"],
            num_spec=drafts,
        )
        dtypes = MambaStateDtypeCalculator.mamba2_state_dtype(torch.bfloat16, "auto", case["ssm_dtype"])
    return shapes, dtypes


def cached_as(case):
    name = case["cache_dtype"]
    return torch.bfloat16 if name == "auto" else STR_DTYPE_TO_TORCH_DTYPE[name]


def heads(case):
    return max(1, case["config"]["num_key_value_heads"] // case["tp"])


def aligned(case):
    """The platform's block size and padding for a hybrid: sets them on the cache configuration."""
    shapes, dtypes = states(case)
    cache = SimpleNamespace(
        cache_dtype=case["cache_dtype"],
        block_size=case["block_size"] or 16,
        mamba_cache_mode="align" if case["align"] else "none",
        mamba_page_size_padded=None,
        mamba_block_size=None,
        kv_cache_dtype_skip_layers=[],
    )
    model = SimpleNamespace(
        dtype=torch.bfloat16,
        use_mla=case["family"] == "kda",
        architecture="X",
        get_num_kv_heads=lambda _: 1 if case["family"] == "kda" else heads(case),
        get_head_size=lambda: 576 if case["family"] == "kda" else case["config"]["head_dim"],
    )
    asked = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: shapes, get_mamba_state_dtype_from_config=lambda _: dtypes
    )
    config = SimpleNamespace(cache_config=cache, model_config=model, parallel_config=None)
    with (
        patch("vllm.model_executor.models.ModelRegistry.resolve_model_cls", lambda *_, **__: (asked, "X")),
        patch("vllm.config.vllm.set_current_vllm_config", lambda _: patch.dict({})),
        patch.object(Platform, "_find_non_ssm_backends", classmethod(lambda *_: [FlashAttentionBackend])),
    ):
        Platform._align_hybrid_block_size(config, FlashAttentionBackend)
    return cache


def specs(case):
    """The spec of each cache by its layer's name, in order; and the layer's number."""
    config, dtype = case["config"], cached_as(case)
    quant = get_kv_quant_mode(case["cache_dtype"])
    found = []
    hybrid = aligned(case) if case["family"] in ("gdn", "mamba", "kda") else None
    block = hybrid.block_size if hybrid else case["block_size"] or case["default_block"]
    full = {"num_kv_heads": heads(case), "head_size": config.get("head_dim", 0), "dtype": dtype, "kv_quant_mode": quant}
    for at, kind in enumerate(case["kinds"]):
        name = f"model.layers.{at}"
        if kind == "full":
            found.append((at, f"{name}.attn", FullAttentionSpec(block_size=block, **full)))
        elif kind == "window":
            window = SlidingWindowSpec(block_size=block, sliding_window=config["sliding_window"], **full)
            found.append((at, f"{name}.attn", window))
        elif kind == "state":
            shapes, dtypes = states(case)
            spec = MambaSpec(
                block_size=hybrid.mamba_block_size or case["longest"],
                shapes=shapes,
                dtypes=dtypes,
                page_size_padded=hybrid.mamba_page_size_padded,
                mamba_cache_mode=hybrid.mamba_cache_mode,
                num_speculative_blocks=case["drafts"],
            )
            found.append((at, f"{name}.state", spec))
        elif kind in ("latent", "sparse"):
            size = config["kv_lora_rank"] + config["qk_rope_head_dim"]
            packed = 656 if case["packed"] else None
            spec = MLAAttentionSpec(
                block_size=block,
                num_kv_heads=1,
                max_tp_shards=1,
                head_size=size,
                dtype=dtype,
                cache_dtype_str="fp8_ds_mla" if packed else case["cache_dtype"],
                kv_quant_mode=quant,
                state_content_bytes=packed,
                is_index_group_leader=kind == "sparse",
            )
            found.append((at, f"{name}.attn", spec))
            if kind == "sparse":
                keys = config["index_head_dim"]
                index = MLAAttentionSpec(
                    block_size=block,
                    num_kv_heads=1,
                    max_tp_shards=1,
                    head_size=keys + keys // 128 * 4,
                    dtype=torch.uint8,
                    cache_role=SparseCacheRole.INDEXER,
                )
                found.append((at, f"{name}.indexer", index))
    return found, block


def plan(case):
    found, block = specs(case)
    align = case.get("align", False)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=case["unified"]),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            mamba_cache_mode="align" if align else "none",
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC,
        ),
        model_config=SimpleNamespace(max_model_len=case["longest"], original_max_model_len=case["longest"]),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=case["dcp"], tensor_parallel_size=case["tp"], prefill_context_parallel_size=1
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=case["in_flight"],
    )
    layers = case["layers"]
    stages = []
    for stage in range(case["pp"]):
        first, last = get_pp_indices(layers, stage, case["pp"])
        final = stage == case["pp"] - 1
        stages.append({name: spec for at, name, spec in found if first <= at < last or (final and at >= layers)})
    try:
        planned = kv_cache_utils.get_kv_cache_configs(config, stages, case["memory"])
    except ValueError as error:
        return {"refused": str(error)[:200], "block": block}
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(config, planned[0])
    return {
        "block": block,
        "blocks": planned[0].num_blocks,
        "block_bytes": [item.kv_cache_tensors[0].size // item.num_blocks for item in planned],
        "groups": len(planned[0].kv_cache_groups),
        "tokens": tokens,
        "concurrency": concurrency,
    }


if __name__ == "__main__":
    print("found: " + json.dumps([plan(case) for case in json.load(sys.stdin)]))
