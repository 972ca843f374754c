"""From a recipe to a multi-node vLLM job on Slurm, and to results that can be trusted."""

__version__ = "0.1.0"
