# Rotation of a single log file. Uses keep and dry_run.

step_remove() {
    if [ "$dry_run" = yes ]; then
        echo "remove $1"
    else
        rm -f "$1"
    fi
}

step_rename() {
    if [ "$dry_run" = yes ]; then
        echo "rename $1 -> $2"
    else
        mv "$1" "$2"
    fi
}

step_create() {
    if [ "$dry_run" = yes ]; then
        echo "create $1"
    else
        : > "$1"
    fi
}

# Move the rotated files of $1 up by one, then $1 itself, and make a new $1.
rotate() {
    log=$1
    for old in $(ls "$log".* 2>/dev/null | sort -r); do
        number=${old##*.}
        if [ "$number" -ge "$keep" ]; then
            step_remove "$old"
        else
            step_rename "$old" "$log.$((number + 1))"
        fi
    done
    step_rename "$log" "$log.1"
    step_create "$log"
}
