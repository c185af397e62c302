import unittest

from verpick import Requirement, Version, VersionError, pick


def matches(requirement, *versions):
    return [v for v in versions if Requirement(requirement).matches(Version(v))]


class RequirementTest(unittest.TestCase):
    def test_exact(self):
        self.assertEqual(matches("1.2.3", "1.2.2", "1.2.3", "1.2.4"), ["1.2.3"])

    def test_range(self):
        self.assertEqual(matches(">=1.2, <2", "1.1.9", "1.2.0", "1.9.9", "2.0.0"), ["1.2.0", "1.9.9"])

    def test_space_after_sign(self):
        self.assertEqual(matches(">= 1.2 < 2", "1.1.9", "1.2.0", "2.0.0"), ["1.2.0"])

    def test_caret(self):
        self.assertEqual(matches("^1.2.3", "1.2.2", "1.2.3", "1.9.0", "2.0.0"), ["1.2.3", "1.9.0"])
        self.assertEqual(matches("^0.2.3", "0.2.3", "0.2.9", "0.3.0"), ["0.2.3", "0.2.9"])

    def test_tilde(self):
        self.assertEqual(matches("~1.2.3", "1.2.2", "1.2.9", "1.3.0"), ["1.2.9"])
        self.assertEqual(matches("~1", "1.0.0", "1.9.9", "2.0.0"), ["1.0.0", "1.9.9"])

    def test_prereleases_are_not_picked_unasked(self):
        self.assertEqual(pick(["1.0.0", "1.1.0-beta"], "^1"), "1.0.0")
        self.assertEqual(pick(["1.0.0", "1.1.0-beta"], "^1", prereleases=True), "1.1.0-beta")

    def test_nothing_fits(self):
        self.assertIsNone(pick(["1.0.0"], ">2"))

    def test_nonsense(self):
        with self.assertRaises(VersionError):
            Requirement("latest")
