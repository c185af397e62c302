"""A glob pattern, translated to a regular expression."""
import re

from .charclass import read_class


class Pattern:
    def __init__(self, text):
        if not text:
            raise ValueError("empty pattern")
        self.text = text
        self._regex = re.compile(translate(text), re.DOTALL)

    def matches(self, path):
        """Whether the whole of `path` matches."""
        return self._regex.match(path) is not None

    def is_literal(self):
        """Whether there is no wildcard, so that only one path can match."""
        return not any(c in self.text for c in "*?[\\")

    def __eq__(self, other):
        return isinstance(other, Pattern) and self.text == other.text

    def __hash__(self):
        return hash(self.text)

    def __repr__(self):
        return "Pattern(%r)" % self.text


def translate(text):
    """The regular expression of a pattern."""
    out = []
    i = 0
    while i < len(text):
        c = text[i]
        if c == "*":
            if text[i:i + 2] == "**":
                out.append(".*")
                i += 2
            else:
                out.append("[^/]*")
                i += 1
        elif c == "?":
            out.append("[^/]")
            i += 1
        elif c == "[":
            found, i = read_class(text, i)
            out.append(found)
        elif c == "\\" and i + 1 < len(text):
            out.append(re.escape(text[i + 1]))
            i += 2
        else:
            out.append(re.escape(c))
            i += 1
    return "".join(out) + "$"
