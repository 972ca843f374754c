"""Asks vLLM's own classes what weighs what: ``[[folder, drafts], …]`` on stdin, bytes of each after ``found:``.

Run by the interpreter of an environment with vLLM. The models are built whole, and without memory (torch's device
``meta``); with drafts the model's MTP layers too, less the embeddings and the head that they share with it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

SHARED = ("embed_tokens", "lm_head")


def parameters(config, model):
    """Bytes of each."""
    with set_default_torch_dtype(model.dtype), torch.device("meta"):
        made = initialize_model(vllm_config=config, model_config=model)
    return {name: item.numel() * item.element_size() for name, item in made.named_parameters()}


def weight(config):
    """Bytes of a model and its drafter."""
    found = sum(parameters(config, config.model_config).values())
    if config.speculative_config is not None:
        draft = config.speculative_config.draft_model_config
        items = parameters(dataclasses.replace(config, model_config=draft), draft).items()
        found += sum(size for name, size in items if not any(word in name for word in SHARED))
    return found


def configuration(folder, drafts):
    """vLLM's configuration of a model."""
    more = {"speculative_config": {"method": "mtp", "num_speculative_tokens": drafts}} if drafts else {}
    return EngineArgs(model=folder, load_format="dummy", max_model_len=16384, **more).create_engine_config()


if __name__ == "__main__":
    # A model without experts would make no group for them, and it is made once.
    configs = [configuration(*case) for case in json.load(sys.stdin)]
    first = next((config for config in configs if config.model_config.is_moe), configs[0])
    with set_current_vllm_config(first), tempfile.TemporaryDirectory() as folder:
        init_distributed_environment(1, 0, f"file://{folder}/store", 0, backend="gloo")
        ensure_model_parallel_initialized(1, 1)
    sizes = []
    for config in configs:
        with set_current_vllm_config(config):
            sizes.append(weight(config))
    print("found: " + json.dumps(sizes))
