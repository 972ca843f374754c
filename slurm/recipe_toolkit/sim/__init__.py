"""A simulated engine: vLLM's flags, HTTP surface and metrics, without weights."""
