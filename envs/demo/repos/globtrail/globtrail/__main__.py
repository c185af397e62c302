"""Print the paths from standard input that are selected by the patterns given."""
import sys

from .selection import Selection


def main(argv, lines, out):
    if not argv:
        print("usage: python3 -m globtrail PATTERN... < paths", file=sys.stderr)
        return 2
    paths = [line.rstrip("\n") for line in lines]
    selected = Selection(argv).filter(path for path in paths if path)
    for path in selected:
        print(path, file=out)
    return 0 if selected else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin, sys.stdout))
