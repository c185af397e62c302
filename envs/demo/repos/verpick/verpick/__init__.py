"""Pick the newest version that satisfies a requirement."""
from .pick import pick
from .requirement import Requirement
from .version import Version, VersionError

__all__ = ["Requirement", "Version", "VersionError", "pick"]
