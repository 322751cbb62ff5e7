# Build functions of set_up.sh and sanitize.sh, with progress and the reason of a failure. Scripts that source this
# file define $python, $log and fail.

# Shows the progress of Ninja: on one line of a terminal, else a line a minute. Ends with the script.
show_progress() {
  seconds=0
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    steps=$(sed -n 's|^ *\[\([0-9]*\)/\([0-9]*\)\].*|\1 of \2 steps|p' "$log" | tail -n 1)
    if [ -t 1 ]; then
      printf '\r\033[K  %s, %d s' "${steps:-configuring}" "$seconds"
    elif [ $((seconds % 60)) -eq 0 ]; then
      echo "  ${steps:-configuring}, $((seconds / 60)) min"
    fi
  done
}

# Prints the message of CMake's first error, on one line.
reason_of_cmake() {
  awk '/CMake Error at/ { found = 1; next }
    found && (/^ *Call Stack/ || NF == 0 && text) { exit }
    found && NF { $1 = $1; text = text " " $0 }
    END { print text }' "$log"
}

# Prints the line number of the first compiler or linker error in the log, if any.
first_error() {
  grep -n -m 1 -E -e ': (fatal )?error: ' -e 'undefined reference to' "$log" | cut -d : -f 1
}

# Builds and installs this checkout. Arguments: options for pip.
install_checkout() {
  : >"$log"
  show_progress &
  watcher=$!
  "$python" -m pip install --verbose --no-build-isolation --no-deps "$@" . >"$log" 2>&1
  status=$?
  kill "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  [ -t 1 ] && printf '\r\033[K'
  [ "$status" -eq 0 ] && return
  reason=$(reason_of_cmake)
  [ -n "$reason" ] && fail "the build failed:$reason"
  line=$(first_error)
  if [ -n "$line" ]; then
    sed -n "$line,$((line + 9))p" "$log" >&2
    fail "the build failed; its first error is above, and the whole log is $log"
  fi
  tail -n 40 "$log" >&2
  fail "the build failed; the whole log is $log"
}
