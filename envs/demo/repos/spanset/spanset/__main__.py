"""Command line: combine span sets and print the result."""
import argparse
import sys

from . import SpanError, SpanSet


def main(argv=None):
    parser = argparse.ArgumentParser(prog="spanset", description=__doc__)
    parser.add_argument("spans", help="for example '1..4, 8..'")
    parser.add_argument("--plus", action="append", default=[], help="spans to add")
    parser.add_argument("--minus", action="append", default=[], help="spans to take away")
    parser.add_argument("--complement", action="store_true", help="print what is not in it")
    options = parser.parse_args(argv)
    try:
        result = SpanSet.parse(options.spans)
        for text in options.plus:
            result = result | SpanSet.parse(text)
        for text in options.minus:
            result = result - SpanSet.parse(text)
    except SpanError as error:
        print("spanset: %s" % error, file=sys.stderr)
        return 2
    print(result.complement() if options.complement else result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
