"""A simulated engine: vLLM's flags, HTTP surface, metrics and KV exchange, without weights.

``python -m recipe_toolkit.sim serve MODEL [vLLM's flags] [--sim JSON]`` stands in for ``vllm serve``:
one process for each process of the plan, all of its DP ranks inside. Only the standard library is used.

Timing model
------------
One DP rank has seats for ``--max-num-seqs`` requests and a KV cache of ``kv_cache_tokens`` tokens in
blocks of ``--block-size``. A request waits for a seat and for the blocks of its prompt; then

``TTFT = queue + ttft_base_ms + computed / prefill_tokens_per_s``
    ``computed``: prompt tokens that neither the rank's prefix cache nor a KV transfer has brought.
    Prefills of a rank run one after the other, and the time for those before it is part of the queue.
    A prefill that ends while a decode step runs gives its token at the end of that step, so up to one
    step may be added, as in a mixed batch.

``TTFT = queue + kv_transfer_ms + bytes / kv_bytes_per_s + step`` with KV from a prefill instance
    ``bytes = kv_bytes_per_token × tokens that are not cached here``. Transfers run side by side.

``TPOT = step = tpot_base_ms + tpot_per_seq_ms × running``
    All running sequences of a rank get a token at the end of each step, and with a speculative
    configuration the draft tokens that ``spec_acceptance`` lets pass (the chance that a draft token is
    accepted after the one before it). ``running``: sequences that decode when the step begins.

Times ending in ``_ms`` are milliseconds, ``_s`` seconds, rates are per second; every key and its
default stands in :data:`recipe_toolkit.sim_options.KEYS`. When a growing sequence finds no free block,
the request that came last is preempted and its KV computed anew. Blocks of a prefill are held for the
decode side until it has read them or the lease (``kv_lease_duration``, 30 s) ends.

What is not simulated: weights, sampling (an answer is a function of its prompt), stop strings,
logprobs, structured output, LoRA, and prefix caching of answers.
"""
