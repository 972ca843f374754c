"""``config.json`` to an :class:`Architecture`: what is not known by name is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from recipe_toolkit.capacity.architecture import (
    Architecture,
    Dense,
    Gqa,
    Indexer,
    Layer,
    Linear,
    Mamba2,
    Mla,
    Moe,
    nonsense,
)
from recipe_toolkit.capacity.quantization import read_quantization
from recipe_toolkit.capacity.refusal import UnknownModel

Config = Mapping[str, Any]
_MOST_LAYERS = 10_000
_WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
# Hundreds of recipes are of a few models.
_KEPT = 64
_read_before: dict[tuple[str, bool], Architecture] = {}


def read_config(config: Config, *, language_only: bool = False) -> Architecture:
    """The architecture that a config.json describes.

    ``language_only``: the recipe leaves other towers out (vLLM's ``language-model-only``). Raises UnknownModel for
    an architecture, a field or a quantization that is not known.
    """
    key = (json.dumps(config, sort_keys=True, default=repr), language_only)
    if key not in _read_before:
        if len(_read_before) >= _KEPT:
            _read_before.clear()
        _read_before[key] = _read(config, language_only)
    return _read_before[key]


def _read(config: Config, language_only: bool) -> Architecture:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise UnknownModel("config.json names no architecture", "it has `architectures`, as transformers writes it")
    name = names[0]
    reader = READERS.get(name)
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and name.endswith("ForConditionalGeneration"):
        if not language_only:
            message = f"the towers of {name} beside its language model are not known"
            raise UnknownModel(message, "language-model-only: true leaves them out, as does this")
        config = {**config, **inner}
        reader = READERS.get(name.replace("ForConditionalGeneration", "ForCausalLM"))
    if reader is None:
        raise UnknownModel(f"attention of {name} is not known", f"known: {', '.join(sorted(READERS))}")
    try:
        layers, mtp, prefix = reader(config)
        model = _whole(name, config, layers, mtp, prefix)
    except KeyError as error:
        raise UnknownModel(f"config.json of {name} lacks {error.args[0]}") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        raise UnknownModel(f"config.json of {name} has a field of another kind: {error}") from None
    wrong = nonsense(model) if layers else "num_hidden_layers is 0"
    if wrong:
        raise UnknownModel(f"config.json of {name} is no model's: {wrong}")
    return model


def _whole(
    name: str, config: Config, layers: tuple[Layer, ...], mtp: tuple[Layer, ...], prefix: tuple[str, ...]
) -> Architecture:
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    if dtype not in _WIDTHS:
        raise UnknownModel(f"dtype {dtype} of {name} is not known", f"known: {', '.join(_WIDTHS)}")
    quantization = read_quantization(config)
    return Architecture(
        name=name,
        hidden=int(config["hidden_size"]),
        vocab=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        layers=layers,
        mtp=mtp,
        width=min(_WIDTHS[dtype], 2),  # vLLM's dtype `auto` makes 16 bits of 32
        longest=int(config.get("max_position_embeddings") or config["model_max_length"]),
        quantization=quantization,
        prefix=prefix[0],
        ssm_dtype=config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype"),
    )


_Parts = tuple[tuple[Layer, ...], tuple[Layer, ...], tuple[str, ...]]
_PLAIN = ("model",)


def _layers(config: Config) -> int:
    """How many; a number that no model has would take for ever."""
    count = int(config["num_hidden_layers"])
    if not 0 < count <= _MOST_LAYERS:
        raise UnknownModel(f"num_hidden_layers is {count}")
    return count


def _attention(config: Config, **more: Any) -> Gqa:
    heads = int(config["num_attention_heads"])
    return Gqa(
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        **more,
    )


def _windows(config: Config, count: int, *, everywhere: bool) -> list[int | None]:
    """The window of each layer: by ``layer_types``, or one for all where ``everywhere``."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if kinds is not None:
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown or len(kinds) != count:
            raise UnknownModel(f"layer_types {', '.join(sorted(map(str, unknown))) or len(kinds)} are not known")
        if "sliding_attention" in kinds and not window:
            raise KeyError("sliding_window")
        return [int(window or 0) if kind == "sliding_attention" else None for kind in kinds]
    return [int(window) if window and everywhere else None] * count


def _llama(config: Config) -> _Parts:
    count = _layers(config)
    bias = bool(config.get("attention_bias", config.get("bias", False)))
    mlp = Dense(int(config["intermediate_size"]), bias=bool(config.get("mlp_bias", False)))
    everywhere = str(config["architectures"][0]).startswith("Mistral")
    windows = _windows(config, count, everywhere=everywhere)
    layers = [Layer(at, _attention(config, qkv_bias=bias, o_bias=bias, window=windows[at]), mlp) for at in range(count)]
    return tuple(layers), (), _PLAIN


def _qwen(config: Config) -> _Parts:
    if config.get("use_sliding_window"):
        raise UnknownModel("use_sliding_window of Qwen is not known")
    count = _layers(config)
    third = str(config["architectures"][0]).startswith("Qwen3")
    attention = _attention(config, qk_norm=third, qkv_bias=not third or bool(config.get("attention_bias", False)))
    sparse = "Moe" in str(config["architectures"][0])
    layers = []
    for at in range(count):
        mlp: Dense | Moe = Dense(int(config["intermediate_size"])) if not sparse else _qwen_moe(config, at)
        layers.append(Layer(at, attention, mlp))
    return tuple(layers), (), _PLAIN


def _qwen_moe(config: Config, at: int) -> Dense | Moe:
    step, dense = int(config.get("decoder_sparse_step", 1)), config.get("mlp_only_layers") or ()
    if at in dense or (at + 1) % step:
        return Dense(int(config["intermediate_size"]))
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    return Moe(
        experts=int(config["num_experts"]),
        top_k=int(config["num_experts_per_tok"]),
        inner=int(config["moe_intermediate_size"]),
        shared_inner=shared,
        shared_gate=bool(shared),
    )


def _mixtral(config: Config) -> _Parts:
    count = _layers(config)
    moe = Moe(int(config["num_local_experts"]), int(config["num_experts_per_tok"]), int(config["intermediate_size"]))
    windows = _windows(config, count, everywhere=True)
    return tuple(Layer(at, _attention(config, window=windows[at]), moe) for at in range(count)), (), _PLAIN


def _gpt_oss(config: Config) -> _Parts:
    count = _layers(config)
    moe = Moe(
        experts=int(config["num_local_experts"]),
        top_k=int(config["num_experts_per_tok"]),
        inner=int(config["intermediate_size"]),
        bias=True,
        router_bias=True,
    )
    windows = _windows(config, count, everywhere=False)
    more = {"qkv_bias": True, "o_bias": True, "sinks": True}
    return tuple(Layer(at, _attention(config, window=windows[at], **more), moe) for at in range(count)), (), _PLAIN


def _deepseek(config: Config) -> _Parts:
    count, drafts = _layers(config), int(config.get("num_nextn_predict_layers") or 0)
    dense, step = int(config.get("first_k_dense_replace") or 0), int(config.get("moe_layer_freq") or 1)
    layers = []
    for at in range(count + drafts):
        sparse = config.get("n_routed_experts") and at >= dense and at % step == 0
        mlp = _deepseek_moe(config) if sparse else Dense(int(config["intermediate_size"]))
        layers.append(Layer(at, _mla(config, at, count), mlp))
    return tuple(layers[:count]), tuple(layers[count:]), _PLAIN


def _deepseek_moe(config: Config) -> Moe:
    inner = int(config["moe_intermediate_size"])
    biased = config.get("topk_method") == "noaux_tc"
    shared = inner * int(config.get("n_shared_experts") or 0)
    routed, top_k = int(config["n_routed_experts"]), int(config["num_experts_per_tok"])
    return Moe(routed, top_k, inner, shared_inner=shared, router_bias=biased)


def _mla(config: Config, at: int, count: int) -> Mla:
    rank = config.get("q_lora_rank")
    indexer = None
    if "index_topk" in config:
        indexer = Indexer(
            int(config["index_n_heads"]), int(config["index_head_dim"]), _builds_indexer(config, at, count)
        )
    return Mla(
        heads=int(config["num_attention_heads"]),
        q_rank=None if rank is None else int(rank),
        kv_rank=int(config["kv_lora_rank"]),
        nope=int(config["qk_nope_head_dim"]),
        rope=int(config["qk_rope_head_dim"]),
        v=int(config["v_head_dim"]),
        indexer=indexer,
    )


def _builds_indexer(config: Config, at: int, count: int) -> bool:
    """Whether vLLM gives the layer an indexer of its own (deepseek_v2.py); a layer of MTP always has one."""
    if at >= count:
        return True
    pattern = config.get("index_topk_pattern")
    if pattern is not None:
        return at >= len(pattern) or str(pattern[at]) not in ("S", "shared")
    kinds = config.get("indexer_types")
    if kinds is not None:
        return str(kinds[at]) == "full"
    every, offset = int(config.get("index_topk_freq") or 1), int(config.get("index_skip_topk_offset") or 2)
    return max(at - offset + 1, 0) % every == 0


def _qwen_hybrid(config: Config) -> _Parts:
    count = _layers(config)
    every = int(config.get("full_attention_interval") or 4)
    kinds = config.get("layer_types") or [
        "full_attention" if (at + 1) % every == 0 else "linear_attention" for at in range(count)
    ]
    if len(kinds) != count or set(kinds) - {"full_attention", "linear_attention"}:
        raise UnknownModel(f"layer_types of {config['architectures'][0]} are not known")
    attention = _attention(config, gated=bool(config.get("attn_output_gate", True)), qk_norm=True)
    state = Linear(
        k_heads=int(config["linear_num_key_heads"]),
        v_heads=int(config["linear_num_value_heads"]),
        k_dim=int(config["linear_key_head_dim"]),
        v_dim=int(config["linear_value_head_dim"]),
        kernel=int(config["linear_conv_kernel_dim"]),
    )
    sparse = bool(config.get("num_experts"))
    layers = []
    for at, kind in enumerate(kinds):
        mlp = _qwen_moe(config, at) if sparse else Dense(int(config["intermediate_size"]))
        layers.append(Layer(at, attention if kind == "full_attention" else state, mlp))
    drafts = int(config.get("mtp_num_hidden_layers") or config.get("num_nextn_predict_layers") or 0)
    last = _qwen_moe(config, count) if sparse else Dense(int(config["intermediate_size"]))
    return tuple(layers), tuple(Layer(at, attention, last) for at in range(drafts)), _PLAIN


def _nemotron_h(config: Config) -> _Parts:
    pattern = str(config["hybrid_override_pattern"])
    attention = _attention({**config, "head_dim": config.get("head_dim") or config.get("attention_head_dim")})
    heads, width = int(config["mamba_num_heads"]), int(config["mamba_head_dim"])
    mamba = Mamba2(
        inner=heads * width,
        groups=int(config["n_groups"]),
        heads=heads,
        head_dim=width,
        state=int(config["ssm_state_size"]),
        kernel=int(config["conv_kernel"]),
        bias=bool(config.get("use_bias", False)),
        conv_bias=bool(config.get("use_conv_bias", True)),
    )
    parts: dict[str, Callable[[int], Layer]] = {
        "M": lambda at: Layer(at, mamba, None, 1),
        "*": lambda at: Layer(at, attention, None, 1),
        "-": lambda at: Layer(at, None, Dense(int(config["intermediate_size"]), projections=2), 1),
        "E": lambda at: Layer(at, None, _nemotron_moe(config), 1),
    }
    unknown = set(pattern) - set(parts)
    if unknown:
        raise UnknownModel(f"layers {', '.join(sorted(unknown))} of hybrid_override_pattern are not known")
    if config.get("num_nextn_predict_layers"):
        raise UnknownModel("the MTP layers of NemotronHForCausalLM are not known")
    return tuple(parts[sign](at) for at, sign in enumerate(pattern)), (), ("backbone",)


def _nemotron_moe(config: Config) -> Moe:
    if config.get("moe_latent_size"):
        raise UnknownModel("latent experts of NemotronHForCausalLM are not known")
    return Moe(
        experts=int(config["n_routed_experts"]),
        top_k=int(config["num_experts_per_tok"]),
        inner=int(config["moe_intermediate_size"]),
        shared_inner=int(config["moe_shared_expert_intermediate_size"]) * int(config.get("n_shared_experts") or 0),
        projections=2,
        router_bias=True,
    )


def _kimi_linear(config: Config) -> _Parts:
    count, linear = _layers(config), config["linear_attn_config"]
    states = {int(at) for at in linear["kda_layers"]}  # counted from 1
    if states | {int(at) for at in linear["full_attn_layers"]} != set(range(1, count + 1)):
        raise UnknownModel("linear_attn_config of KimiLinearForCausalLM does not tell of every layer")
    if config.get("num_nextn_predict_layers"):
        raise UnknownModel("the MTP layers of KimiLinearForCausalLM are not known")
    heads, width = int(linear["num_heads"]), int(linear["head_dim"])
    low = not linear.get("use_full_rank_gate", False)
    kernel = int(linear["short_conv_kernel_size"])
    state = Linear(heads, heads, width, width, kernel, kda=True, low_rank=low)
    experts = {**config, "n_routed_experts": config["num_experts"], "topk_method": "noaux_tc"}
    experts |= {
        "num_experts_per_tok": config["num_experts_per_token"],
        "n_shared_experts": config.get("num_shared_experts"),
    }
    dense, step = int(config.get("first_k_dense_replace") or 0), int(config.get("moe_layer_freq") or 1)
    layers = []
    for at in range(count):
        mlp = _deepseek_moe(experts) if at >= dense and at % step == 0 else Dense(int(config["intermediate_size"]))
        layers.append(Layer(at, state if at + 1 in states else _mla(config, at, count), mlp))
    return tuple(layers), (), _PLAIN


READERS: dict[str, Callable[[Config], _Parts]] = {
    "KimiLinearForCausalLM": _kimi_linear,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _llama,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen,
    "Qwen3ForCausalLM": _qwen,
    "Qwen3MoeForCausalLM": _qwen,
    "GptOssForCausalLM": _gpt_oss,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "DeepseekV32ForCausalLM": _deepseek,
    "GlmMoeDsaForCausalLM": _deepseek,
    "Qwen3NextForCausalLM": _qwen_hybrid,
    "Qwen3_5ForCausalLM": _qwen_hybrid,
    "Qwen3_5MoeForCausalLM": _qwen_hybrid,
    "NemotronHForCausalLM": _nemotron_h,
}
