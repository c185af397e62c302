# Options of the command line.

keep=5
dry_run=no
files=

usage() {
    echo "usage: rotlog [-n] [-k N] [--] FILE..."
}

# Print a message and the usage, and give up.
misuse() {
    echo "rotlog: $1" >&2
    usage >&2
    exit 2
}

# Check that $1 is a number of files to keep.
set_keep() {
    case $1 in
        *[!0-9]*) misuse "not a number: '$1'" ;;
    esac
    keep=$1
}

# Set keep, dry_run and files from the arguments.
parse_options() {
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help)
                usage
                exit 0
                ;;
            -n | --dry-run)
                dry_run=yes
                ;;
            -k | --keep)
                set_keep "$2"
                shift
                ;;
            -*)
                misuse "unknown option '$1'"
                ;;
            *)
                break
                ;;
        esac
        shift
    done
    files=$*
    if [ -z "$files" ]; then
        misuse "no file given"
    fi
}
