#!/bin/bash

# Parameters
#SBATCH --account=proj-1
#SBATCH --chdir=/shared/runs/2026-11-29T12-00-00-tiny-ab12
#SBATCH --comment='it'"'"'s a test'
#SBATCH --constraint='h200&ib'
#SBATCH --job-name=tiny-rehearsal-ab12
#SBATCH --mail-user=a@b.c
#SBATCH --mem=0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/2026-11-29T12-00-00-tiny-ab12/job/%j_0_log.out
#SBATCH --partition=batch
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --reservation='maint 7'
#SBATCH --segment=2
#SBATCH --signal=USR2@300
#SBATCH --time=60

# setup
module load cuda/13
export UCX_LOG="warn"

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/runs/2026-11-29T12-00-00-tiny-ab12/job/%j_%t_log.out --kill-on-bad-exit=0 --wait=900 --cpu-bind=none --mpi=none /shared/venv/bin/python -u -m submitit.core._submit /shared/runs/2026-11-29T12-00-00-tiny-ab12/job
