#!/bin/bash

# Parameters
#SBATCH --chdir=/shared/runs/2026-11-29T12-00-00-tiny-ab12
#SBATCH --exclusive
#SBATCH --gres=gpu:8
#SBATCH --job-name=tiny-ab12
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/2026-11-29T12-00-00-tiny-ab12/job/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --signal=USR2@120
#SBATCH --time=60

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/runs/2026-11-29T12-00-00-tiny-ab12/job/%j_%t_log.out --kill-on-bad-exit=0 --wait=900 --cpu-bind=none /shared/venv/bin/python -u -m submitit.core._submit /shared/runs/2026-11-29T12-00-00-tiny-ab12/job
