#!/bin/sh
# usage: step.sh RECORD PROGRAM [ARGUMENT...]     the task of a step of Slurm, in its container
# Writes JOB.STEP PID START of the process that becomes the program, for step.py.
record=$1
shift
# The scheduler's warning goes to every process; the agent alone decides what it means.
trap '' USR2
read -r a b c d e f g h i j k l m n o p q r s t u start rest </proc/$$/stat
echo "$SLURM_JOB_ID.$SLURM_STEP_ID $$ $start" >"$record.new" && mv "$record.new" "$record" || exit 1
[ -z "$RECIPE_CUDA_VISIBLE_DEVICES" ] || export CUDA_VISIBLE_DEVICES="$RECIPE_CUDA_VISIBLE_DEVICES"
while read -r line; do
  name=${line%%=*}
  name=${name##* }
  case $name in
    SLURM*|PMI*|RECIPE_CUDA_VISIBLE_DEVICES|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)
      command unset "$name" 2>/dev/null ;;
  esac
done <<EOF
$(export -p)
EOF
exec "$@"
