exec 8</dev/null 9>&1 >/dev/null 2>&1
__patchgym_options=$(set +o)
__patchgym_done() {
command eval "$__patchgym_options"
command trap - HUP INT QUIT TERM EXIT
{ command printf '%s %s\n' "$2" "$1"; command pwd; command printf '\0'; command export -p; command printf '\0%s\n' "$2"; } >"$__patchgym_status" 2>/dev/null
}
command printf 500 >"/proc/$$/oom_score_adj"
