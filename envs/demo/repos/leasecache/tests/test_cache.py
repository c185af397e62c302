import unittest

from leasecache import LeaseCache, ManualClock


class BasicTest(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock()
        self.cache = LeaseCache(3, ttl=10, clock=self.clock)

    def test_get_and_default(self):
        self.cache.set("a", 1)
        self.assertEqual(self.cache.get("a"), 1)
        self.assertEqual(self.cache.get("b", 7), 7)

    def test_none_is_a_value(self):
        self.cache.set("a", None)
        self.assertIn("a", self.cache)
        self.assertIsNone(self.cache.get("a", 5))

    def test_lease_is_over_at_the_deadline(self):
        self.cache.set("a", 1)
        self.clock.advance(9)
        self.assertIn("a", self.cache)
        self.clock.advance(1)
        self.assertNotIn("a", self.cache)

    def test_own_lease(self):
        self.cache.set("a", 1, ttl=2)
        self.cache.set("b", 2, ttl=None)
        self.clock.advance(1000)
        self.assertEqual(self.cache.keys(), ["b"])

    def test_least_recently_used_goes_first(self):
        for key in "abc":
            self.cache.set(key, key)
        self.cache.get("a")
        self.cache.set("d", "d")
        self.assertEqual(self.cache.keys(), ["c", "a", "d"])
        self.assertEqual(self.cache.stats()["evictions"], 1)

    def test_purge(self):
        self.cache.set("a", 1)
        self.cache.set("b", 1, ttl=20)
        self.clock.advance(10)
        self.assertEqual(self.cache.purge(), 1)
        self.assertEqual(self.cache.stats()["expirations"], 1)

    def test_delete(self):
        self.cache.set("a", 1)
        self.assertTrue(self.cache.delete("a"))
        self.assertFalse(self.cache.delete("a"))

    def test_arguments_are_checked(self):
        with self.assertRaises(ValueError):
            LeaseCache(0)
        with self.assertRaises(ValueError):
            self.cache.set("a", 1, ttl=0)


if __name__ == "__main__":
    unittest.main()
