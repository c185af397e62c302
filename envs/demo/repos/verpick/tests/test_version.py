import unittest

from verpick import Version, VersionError


class VersionTest(unittest.TestCase):
    def test_numbers_are_numbers(self):
        self.assertLess(Version("1.9.0"), Version("1.10.0"))
        self.assertLess(Version("1.9.9"), Version("2.0.0"))

    def test_prerelease_comes_before_its_release(self):
        self.assertLess(Version("1.0.0-rc.1"), Version("1.0.0"))
        self.assertGreater(Version("1.0.1-rc.1"), Version("1.0.0"))

    def test_words_are_in_alphabetical_order(self):
        self.assertLess(Version("1.0.0-alpha"), Version("1.0.0-beta"))

    def test_parts(self):
        version = Version(" 1.2.3-rc.4+build.5 ")
        self.assertEqual(version.release, (1, 2, 3))
        self.assertEqual(version.build, "build.5")
        self.assertEqual(str(version), "1.2.3-rc.4+build.5")

    def test_nonsense(self):
        for text in ("", "1", "1.2", "1.2.x", "01.2.3", "1.2.3-", "1.2.3+"):
            with self.assertRaises(VersionError):
                Version(text)
