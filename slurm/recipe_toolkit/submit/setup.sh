#!/bin/sh
# Runs every step beside it, in order, and then becomes the program that it is given.
# usage: run.sh PROGRAM [ARGUMENT...]
for step in "${0%/*}"/[0-9]*.sh; do
  name=${step##*/}
  name=${name#*-}
  name=${name%.sh}
  echo "setup: $name"
  IFS= read -r shell <"$step"
  set -f
  # The words after #!, as the kernel takes them: the run folder may be mounted noexec.
  ${shell#??} "$step" || {
    code=$?
    echo "setup: $name failed with exit code $code"
    exit "$code"
  }
  set +f
done
echo "setup: done"
exec "$@"
