"""InferenceX's result rows (formerly InferenceMAX), read and written.

A row is one measurement: what its ``process_result.py`` writes as ``agg_*.json``, an array of those, or the same with
the figures below ``metrics`` (the app's data). What is unlike ours, and so easily taken for something else:

- Names without a unit are seconds: ``p99_ttft`` is ``p99_ttft_ms`` / 1000. ``median`` is our p50, ``e2el`` our E2E.
- ``X_intvty`` is 1000 / ``X_tpot_ms`` for every statistic X, so that ``p99_intvty`` is the slow tail, and
  ``std_intvty`` means nothing: it is neither read nor written.
- ``tput_per_gpu`` (input and output tokens) is over all GPUs. ``output_tput_per_gpu`` is over the decode GPUs alone and
  ``input_tput_per_gpu`` over the prefill GPUs alone where ``is_multinode`` is true, else over all. Rows that also have
  ``output_tput_per_decode_gpu`` say there what is per decode GPU, and the two are over all GPUs. A deployment over
  several nodes without roles counts as prefill GPUs, with no decode GPU.
- GPUs of a single node are tp x pp x pcp; ``tp`` holds the DP ranks too where ``dp_attention`` is true.
- Its client draws lengths from 0.8 of ``isl`` and ``osl`` up to them unless it is told otherwise.
"""

from __future__ import annotations

# Its client is made from vLLM's benchmark_serving.py, and measures as `vllm bench serve` does.
CLIENT = "vllm-bench"
# Our latencies and statistics, and its words for them.
LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "e2e_ms": "e2el"}
PARTS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
