# Steps with a name, a duration and a log. Sourced by setup.sh and run.sh.

start_log() {
  log=$1
  mkdir -p "$(dirname "$log")"
  : >"$log"
}

die() {
  printf '\n%s\n' "$@" >&2
  exit 1
}

# [remedy=TEXT] step NAME COMMAND...: runs the command with its output in the log. When it fails,
# shows the log's end and the remedy, and leaves. (`set -e` is off inside: join commands with &&.)
step() {
  local name=$1 begin=$SECONDS status=0 ticker=
  shift
  if [[ -t 1 ]]; then
    # Ends with the script too: an interrupt does not reach background jobs.
    while sleep 1 && kill -0 $$; do printf '\r%s ... %d s' "$name" $((SECONDS - begin)); done 2>/dev/null &
    ticker=$!
  fi
  printf '%s ... ' "$name"
  printf '\n## %s\n' "$name" >>"$log"
  "$@" </dev/null >>"$log" 2>&1 || status=$?
  if [[ -n $ticker ]]; then
    kill "$ticker"
    wait "$ticker" 2>/dev/null || true
    printf '\r%s ... ' "$name"
  fi
  if ((status == 0)); then
    printf '%d s\n' $((SECONDS - begin))
    return
  fi
  printf 'FAILED after %d s\n' $((SECONDS - begin))
  tail -n 60 "$log" >&2
  die "$name failed (status $status). The whole log: $log" ${remedy:+"$remedy"}
}
