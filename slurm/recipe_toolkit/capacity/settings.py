"""The flags of a role as they bear on memory, with vLLM's defaults where the recipe writes none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.capacity.architecture import Architecture
from recipe_toolkit.capacity.gpus import Gpu
from recipe_toolkit.capacity.kv_layers import KvFlags
from recipe_toolkit.capacity.ledger import GIB
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.capacity.weights import Spread
from recipe_toolkit.feasibility.benchmarks import human_integer
from recipe_toolkit.feasibility.serving import effective_args
from recipe_toolkit.recipe import Parallel, Recipe, Role

# Backends with which each rank of a TP group holds the shared experts whole (vLLM's config/parallel.py,
# use_sequence_parallel_moe): of old, and in 0.32. When each came between is not known.
_SEQUENCE_PARALLEL = frozenset(
    {
        "allgather_reducescatter",
        "deepep_high_throughput",
        "deepep_low_latency",
        "mori_high_throughput",
        "mori_low_latency",
        "nixl_ep",
    }
)
_LATER = frozenset({"deepep_v2", "flashinfer_nvlink_one_sided", "passthrough"})
_LATER_SINCE = (0, 32)
# Flags that move memory in a way that is not modelled here.
_UNKNOWN = ("cpu-offload-gb", "enable-lora", "kv-cache-dtype-skip-layers", "enable-eplb")
_UTILIZATION = 0.92
_FITTED = (-1, "-1", "auto")  # values of max-model-len
_DENSE_BLOCK = {"gpu": 16, "cpu": 128}


@dataclass(frozen=True)
class Settings:
    """``graphs``: whether CUDA graphs are captured, ``capture``: the largest size. ``memory``: --kv-cache-memory-bytes.

    ``fitted``: vLLM takes the longest context that fits, ``longest`` at most.
    ``assumed``: what stands here because the recipe does not say it. ``omitted``: what is not counted.
    """

    spread: Spread
    kv: KvFlags
    utilization: float
    longest: int
    sequences: int
    batched: int
    graphs: bool
    capture: int
    fitted: bool = False
    memory: int | None = None
    blocks: int | None = None
    mtp: bool = False
    assumed: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    written: frozenset[str] = field(default_factory=frozenset)


def series(version: str) -> tuple[int, int] | None:
    """``(0, 26)`` of ``0.26.1rc1``; None where the version is no number."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def overridden(config: Mapping[str, Any], recipe: Recipe, role: Role) -> dict[str, Any]:
    """config.json under the recipe's ``hf-overrides``. Raises UnknownModel where they are no mapping."""
    overrides = effective_args(recipe, role).get("hf-overrides")
    if overrides is None:
        return dict(config)
    if not isinstance(overrides, Mapping):
        raise UnknownModel("hf-overrides that are no mapping are not known", "hf-overrides: {KEY: VALUE}")
    return {**config, **overrides}


def settings_of(recipe: Recipe, role: Role, model: Architecture, gpu: Gpu | None) -> Settings:
    """What a role sets. ``gpu``: None on device cpu. Raises UnknownModel for a flag that is not known."""
    return _Reader(recipe, role, model, gpu).read()


class _Reader:
    def __init__(self, recipe: Recipe, role: Role, model: Architecture, gpu: Gpu | None) -> None:
        self.recipe, self.role, self.model, self.gpu = recipe, role, model, gpu
        self.args = effective_args(recipe, role)
        self.assumed: list[str] = []
        self.omitted: list[str] = []

    def read(self) -> Settings:
        for flag in _UNKNOWN:
            if self.args.get(flag) not in (None, False):
                raise UnknownModel(f"the memory of {flag} is not known")
        if self.args.get("quantization") and self.model.quantization.method == "none":
            raise UnknownModel("the memory of weights that vLLM quantizes as it loads them is not known")
        drafts, mtp = self.drafts()
        fitted = self.args.get("max-model-len") in _FITTED
        longest = self.number("max-model-len", self.model.longest, "config.json's longest context")
        sequences, batched = self.scheduler()
        graphs, capture = self.graphs(sequences, batched, drafts)
        utilization = self.args.get("gpu-memory-utilization")
        if utilization is None:
            self.assumed.append(f"gpu-memory-utilization {_UTILIZATION}, vLLM's default")
        return Settings(
            spread=self.spread(),
            kv=self.kv(drafts, mtp, batched),
            utilization=float(utilization if utilization is not None else _UTILIZATION),
            longest=longest,
            fitted=fitted,
            sequences=sequences,
            batched=batched,
            graphs=graphs,
            capture=capture,
            memory=human_integer(self.args.get("kv-cache-memory-bytes")),
            blocks=human_integer(self.args.get("num-gpu-blocks-override")),
            mtp=mtp,
            assumed=tuple(self.assumed),
            omitted=tuple(self.omitted),
            written=frozenset(self.args),
        )

    def number(self, flag: str, default: int, why: str) -> int:
        found = human_integer(self.args.get(flag))
        if found is None or found <= 0:
            self.assumed.append(f"{flag} {default:,}, {why}")
            return default
        return found

    def drafts(self) -> tuple[int, bool]:
        """(speculative tokens, whether the model's own MTP layers make them)."""
        config = self.args.get("speculative-config")
        if not isinstance(config, Mapping):
            return 0, False
        count, method = config.get("num_speculative_tokens"), str(config.get("method") or "unnamed")
        if not isinstance(count, int) or count < 1:
            raise UnknownModel("speculative-config without num_speculative_tokens is not known")
        if method == "mtp" or method.endswith("_mtp"):
            if not self.model.mtp:
                raise UnknownModel(f"{self.model.name} has no MTP layers that are known", "another method, or none")
            return count, True
        if method != "ngram":
            self.omitted.append(f"the draft model of {method}: its weights and its cache")
        return count, False

    def spread(self) -> Spread:
        parallel = self.role.parallel
        backend = str(self.args.get("all2all-backend") or "allgather_reducescatter")
        spread = parallel.ep and parallel.tp > 1 and parallel.dp > 1
        shared = spread and backend in _SEQUENCE_PARALLEL
        if spread and backend in _LATER:
            version = series(self.recipe.engine.version)
            shared = version is None or version >= _LATER_SINCE
            if not shared:
                self.assumed.append(f"TP ranks share the shared experts out; from vLLM 0.32 on not with {backend}")
        return spread_of(parallel, self.model, shared=shared)

    def scheduler(self) -> tuple[int, int]:
        """(max-num-seqs, max-num-batched-tokens): vLLM's defaults go by the memory of the device (arg_utils.py)."""
        total = self.gpu.total if self.gpu else 0
        sequences, batched = (256, 2048)
        if total >= 70 * GIB and self.gpu is not None and self.gpu.name != "A100":
            sequences, batched = 1024, 16384 if total >= 160 * GIB else 8192
        why = "vLLM's default here" if self.gpu else "vLLM's default on other devices"
        return (
            self.number("max-num-seqs", sequences, why),
            self.number("max-num-batched-tokens", batched, why),
        )

    def graphs(self, sequences: int, batched: int, drafts: int) -> tuple[bool, int]:
        compilation = self.args.get("compilation-config")
        mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
        if self.gpu is None or self.args.get("enforce-eager") or mode in ("NONE", 0):
            return False, 0
        default = 1024 if self.gpu.capability == 10 else 512
        size = human_integer(self.args.get("max-cudagraph-capture-size"))
        if size is None and isinstance(compilation, Mapping):
            size = human_integer(compilation.get("max_cudagraph_capture_size"))
        return True, min(size or min(2 * sequences * (1 + drafts), default), batched)

    def kv(self, drafts: int, mtp: bool, batched: int) -> KvFlags:
        parallel, dtype = self.role.parallel, str(self.args.get("kv-cache-dtype") or "auto")
        sparse = any(_sparse(layer.mixer) for layer in self.model.layers)
        tenth = self.gpu is not None and self.gpu.capability == 10
        if dtype == "auto" and sparse and self.model.name.startswith("GlmMoeDsa") and tenth:
            self.assumed.append("kv-cache-dtype fp8, as vLLM 0.32 has it for GLM on compute capability 10")
            dtype = "fp8"
        backend = str(self.args.get("attention-backend") or "")
        # FlashInfer's sparse kernel is vLLM's first choice on capability 10, and stores plain FP8.
        packed = not tenth if not backend else "FLASHINFER" not in backend.upper()
        kernel = 16
        if self.model.mla and self.gpu is not None:
            # FlashAttention's, vLLM's first choice on Hopper, takes blocks of 16, and no FP8 (platforms/cuda.py).
            small = self.gpu.capability == 9 and not (sparse or backend or dtype.startswith("fp8"))
            kernel = 16 if small else 64
            if "block-size" not in self.args and not sparse:
                self.assumed.append(f"blocks of {kernel} tokens: latent attention's kernel decides, which vLLM chooses")
        caching = self.args.get("enable-prefix-caching")
        if caching is None and self.model.hybrid:
            self.assumed.append("enable-prefix-caching, vLLM's default: a state takes one block more")
        default = _DENSE_BLOCK["gpu" if self.gpu else "cpu"]
        steps = parallel.pp if self.args.get("async-scheduling") is False else max(2, parallel.pp)
        return KvFlags(
            tp=parallel.tp,
            pp=parallel.pp,
            dcp=parallel.dcp,
            cache_dtype=dtype,
            conv_dtype=str(self.args.get("mamba-cache-dtype") or "auto"),
            ssm_dtype=str(self.args.get("mamba-ssm-cache-dtype") or "auto"),
            block_size=human_integer(self.args.get("block-size")),
            kernel_block=kernel,
            default_block=max(default, kernel) if self.gpu else (16 if self.model.mla else default),
            drafts=drafts,
            mtp=mtp,
            in_flight=steps * batched,
            ds_mla=packed,
            unified=bool(self.args.get("disable-hybrid-kv-cache-manager")),
            align=self.model.hybrid and caching is not False,
        )


def _sparse(mixer: object) -> bool:
    return getattr(mixer, "indexer", None) is not None


def spread_of(parallel: Parallel, model: Architecture, *, shared: bool) -> Spread:
    """The ranks of one instance. A dense model's DP ranks share no weights."""
    return Spread(parallel.tp, parallel.pp, parallel.dp if model.moe else 1, replicate_shared=shared)
