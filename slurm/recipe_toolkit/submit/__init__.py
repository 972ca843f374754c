"""A planned run becomes a job: Slurm's, or one on this machine."""
