"""Lists of patterns of which the last match decides."""
import os

from .pattern import Pattern


class Selection:
    def __init__(self, patterns=()):
        self._rules = []
        for text in patterns:
            self.append(text)

    def append(self, text):
        keep = not text.startswith("!")
        self._rules.append((keep, Pattern(text if keep else text[1:])))

    def __contains__(self, path):
        for keep, pattern in reversed(self._rules):
            if pattern.matches(path):
                return keep
        return False

    def filter(self, paths):
        """The selected paths, in the order given."""
        return [path for path in paths if path in self]

    def __repr__(self):
        texts = [("" if keep else "!") + pattern.text for keep, pattern in self._rules]
        return "Selection(%r)" % texts


def walk(root, selection):
    """Selected files below `root`, as sorted paths with forward slashes."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            if path in selection:
                found.append(path)
    return sorted(found)
