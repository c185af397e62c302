dry_run() {
    echo a > app.log; echo b > app.log.1
    "$rotlog" --dry-run app.log > steps || return 1
    printf '%s\n' "rename app.log.1 -> app.log.2" "rename app.log -> app.log.1" "create app.log" > expected
    diff expected steps && is "a,b" app.log app.log.1
}
check "dry run prints the steps" dry_run

misuse() {
    echo a > app.log
    status 2 "$rotlog" && status 2 "$rotlog" --what app.log && status 2 "$rotlog" -k x app.log && is "a" app.log
}
check "wrong usage has status 2" misuse

help() {
    "$rotlog" --help | grep -q '^usage: rotlog'
}
check "help" help

missing() {
    status 1 "$rotlog" nothing.log
}
check "a missing file has status 1" missing
