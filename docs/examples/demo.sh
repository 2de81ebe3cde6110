#!/usr/bin/env bash
# What `make demo` shows: a scheduler, an agent and a gateway on this machine, one real training job, a model that is
# served and a session with it, and nothing left behind but, when something fails, the logs.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
bin=${BIN:?BIN names the folder with gpuctl and python}
bin=$(cd "$bin" && pwd)
home=$(mktemp -d "${TMPDIR:-/tmp}/gpufleet-demo.XXXXXX")
# Everything that gpuctl keeps goes here, so that the demo touches nothing of yours.
export XDG_STATE_HOME=$home/state XDG_CONFIG_HOME=$home/config
unset GPUCTL_SCHEDULER GPUCTL_TOKEN GPUCTL_OUTPUT

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
show() { say "gpuctl $*"; "$bin/gpuctl" "$@"; }
finish() {
    local status=$?
    say "gpuctl down"
    "$bin/gpuctl" down --yes || status=1
    if ((status == 0)); then
        rm -rf "$home"
    else
        printf '\nThe demo failed. Its logs are kept: %s\n' "$(echo "$home"/state/gpufleet/*/logs)" >&2
    fi
    exit "$status"
}
trap finish EXIT

show up --detach --scheduler-port 0 --port 0
show nodes
show run --gpus 1 --name demo -- "$bin/python" "$here/train.py"
show queue -a
show job last
show serve canvas --gpus 1 --max 2 --model-arg steps=1
show models -o wide
page=$(<"$XDG_STATE_HOME/gpufleet/gateway/listening")
say "python session.py $page canvas"
"$bin/python" "$here/session.py" "$page" canvas 4
show serve canvas --stop
