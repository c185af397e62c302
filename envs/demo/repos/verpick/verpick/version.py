"""Versions and their order."""
import functools
import re


class VersionError(ValueError):
    """A text that is not a version."""


_NUMBER = r"(0|[1-9]\d*)"
_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = re.compile(
    r"%s\.%s\.%s(?:-(%s))?(?:\+(%s))?" % (_NUMBER, _NUMBER, _NUMBER, _IDENTIFIERS, _IDENTIFIERS)
)


@functools.total_ordering
class Version:
    def __init__(self, text):
        found = _VERSION.fullmatch(text.strip())
        if not found:
            raise VersionError("not a version: %r" % text)
        self.text = text.strip()
        self.release = tuple(int(part) for part in found.group(1, 2, 3))
        self.prerelease = tuple(found.group(4).split(".")) if found.group(4) else ()
        self.build = found.group(5) or ""

    @classmethod
    def of(cls, major, minor=0, patch=0):
        return cls("%d.%d.%d" % (major, minor, patch))

    def _key(self):
        # A release comes after all of its pre-releases.
        return self.release, not self.prerelease, self.prerelease

    def __eq__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
        return self.text == other.text

    def __lt__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
        return self._key() < other._key()

    def __hash__(self):
        return hash(self.text)

    def __str__(self):
        return self.text

    def __repr__(self):
        return "Version(%r)" % self.text
