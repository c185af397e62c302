#!/bin/sh
# Run all cases and print TAP. A case file calls `check DESCRIPTION COMMAND...`; each of
# them starts in an empty directory, and $rotlog is the program.
root=$(cd "$(dirname "$0")/.." && pwd) || exit 2
rotlog=$root/bin/rotlog
count=0
failures=0

check() {
    description=$1
    shift
    count=$((count + 1))
    place=$(mktemp -d) || exit 2
    if (cd "$place" && "$@") > "$place.out" 2>&1; then
        echo "ok $count - $description"
    else
        failures=$((failures + 1))
        echo "not ok $count - $description"
        sed 's/^/# /' "$place.out"
    fi
    rm -rf "$place" "$place.out"
}

# is EXPECTED FILE...: the content of the files, joined by commas.
is() {
    expected=$1
    shift
    actual=
    for name in "$@"; do
        actual="$actual${actual:+,}$(cat < "$name")" || return 1
    done
    [ "$actual" = "$expected" ] || { echo "expected '$expected', got '$actual'"; return 1; }
}

# status CODE COMMAND...: the exit status of a command.
status() {
    expected=$1
    shift
    "$@"
    actual=$?
    [ "$actual" -eq "$expected" ] || { echo "expected status $expected, got $actual"; return 1; }
}

for cases in "$root"/tests/cases/*.sh; do
    . "$cases"
done
echo "1..$count"
[ "$failures" -eq 0 ]
