"""What fits into the memory of a GPU: weights, KV cache, requests; pure arithmetic, with no GPU and no torch.

Formulae are vLLM's own, of 0.32 where nothing else is said; ``tests/unit/test_capacity_oracle.py`` holds them
against its planner. Sizes are bytes unless a name says otherwise; lengths are tokens.
"""
