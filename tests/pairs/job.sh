# What a job of tests/pairs runs: it says what it was given, a line each. Its words say what else it does:
# leaves: a file in out; reads: its input; listens: at a port; stays: in attempt 1, until USR1; badly, once: exits with 3.
say() { echo "$1: ${2:-none}"; }
words=" $* "
has() { case "$words" in *" $1 "*) true ;; *) false ;; esac; }
listens() {
    port="${words#* listens=}"
    port="${port%% *}"
    while :; do echo 'port open' | if command -v busybox >/dev/null; then busybox nc -l -p "$port"; else nc -l -p "$port"; fi; done >/dev/null 2>&1 &
}
has stays && trap 'goes=on' USR1
say attempt "$GPUFLEET_ATTEMPT"
say item "$GPUFLEET_ARRAY_INDEX"
say rank "$GPUFLEET_NODE_RANK of $GPUFLEET_NNODES"
say gpus "$GPUFLEET_GPUS_PER_NODE"
say share "$GPUFLEET_GPU_SHARE"
say mode "$GPUFLEET_GPU_MODE"
say limit "${GPUFLEET_END_TIME:+yes}"
say variable "$PAIRS_VARIABLE"
say secret "$PAIRS_SECRET"
say folder "$(cat words.txt 2>/dev/null)"
say file "$(cat more.txt 2>/dev/null)"
say environment "$(cat "$VIRTUAL_ENV/words" 2>/dev/null || python -c 'import greeting; print(greeting.WORDS)' 2>/dev/null)"
say image "$FROM_IMAGE"
say nice "$(nice 2>/dev/null | grep -x 19)"
say descriptors "$(ulimit -Sn | grep -x 4000)"
case "$words" in *" listens="*) [ "${GPUFLEET_ARRAY_INDEX:-1}" = 1 ] && [ "$GPUFLEET_NODE_RANK" = 0 ] && listens ;; esac
has reads && say input "$(cat)"
has leaves && mkdir -p out && echo "$GPUFLEET_ATTEMPT" > out/left
if has stays && [ "$GPUFLEET_ATTEMPT" = 1 ]; then
    echo stays
    until [ "$goes" ]; do (trap '' USR1; exec sleep 0.2); done
    echo goes on
fi
has once && [ "$GPUFLEET_ATTEMPT" = 1 ] || has badly || exit 0
# The first rank that fails ends the others: they say all that they have to say before.
if [ "$GPUFLEET_NNODES" != 1 ]; then
    [ "$GPUFLEET_NODE_RANK" = 0 ] || exit 0
    sleep 4
fi
exit 3
