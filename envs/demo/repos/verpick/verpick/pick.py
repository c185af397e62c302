"""Choosing among many versions."""
from .requirement import Requirement
from .version import Version


def pick(versions, requirement="*", prereleases=False):
    """The newest of `versions` (texts) that satisfies `requirement`, or None."""
    wanted = Requirement(requirement)
    best = None
    for text in versions:
        version = Version(text)
        if wanted.matches(version, prereleases) and (best is None or version > best):
            best = version
    return None if best is None else best.text
