# What enroot runs in place of the image's /etc/rc, which holds its entrypoint: FOLDER PROGRAM [ARGUMENT...]
# The scheduler's warning goes to every process; the agent alone decides what it means.
trap '' USR2
cd "$1" || exit 1
shift
exec "$@"
