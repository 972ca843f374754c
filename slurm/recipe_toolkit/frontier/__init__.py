"""From runs of prefill alone and of decode alone to predicted prefill/decode points: arithmetic, no I/O."""
