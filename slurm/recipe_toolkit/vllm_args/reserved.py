"""Flags of ``vllm serve`` that do not stand in ``args``."""

from __future__ import annotations

from collections.abc import Mapping

_PLACED = "the plan places ranks on nodes; sizes stand in roles.ROLE.parallel"
_ADDRESS = "each process is given its own node's address"
_PORT = "ports are reserved on each node when the run begins"
_KV = "it follows from kv_transfer and the role"
_RAY = "instances are launched without Ray"

RESERVED: Mapping[str, str] = {
    "model": "the model stands in model.path",
    "served-model-name": "it stands in model.served_name",
    "revision": "it stands in model.path: hf:ORG/REPO@REVISION",
    "host": _ADDRESS,
    "uds": _ADDRESS,
    "port": _PORT,
    "grpc": "clients and router speak HTTP",
    "nnodes": _PLACED,
    "node-rank": _PLACED,
    "master-addr": _ADDRESS,
    "master-port": _PORT,
    "headless": _PLACED,
    "device-ids": "the plan gives each process its own devices",
    "data-parallel-size-local": _PLACED,
    "data-parallel-start-rank": _PLACED,
    "data-parallel-rank": _PLACED,
    "data-parallel-address": _ADDRESS,
    "data-parallel-rpc-port": _PORT,
    "data-parallel-supervisor-port": _PORT,
    "data-parallel-multi-port-external-lb": "instances behind the router do the same with a health of their own",
    "data-parallel-external-lb": "instances behind the router do the same with a health of their own",
    "data-parallel-backend": _RAY,
    "ray-workers-use-nsight": _RAY,
    "kv-transfer-config": _KV,
    "config": "flags of a file would not be checked, nor stand in the plan",
    "api-key": "a flag stands in plain sight of every user of a node",
    "hf-token": "a flag stands in plain sight of every user of a node",
}
"""Flags that the toolkit sets or does not let through, with the reason."""

PARALLEL: Mapping[str, str] = {
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "data-parallel-size": "dp",
    "decode-context-parallel-size": "dcp",
    "enable-expert-parallel": "ep",
    "data-parallel-hybrid-lb": "dp_lb",
}
"""Flags that are said in ``roles.ROLE.parallel``, with the key there."""
