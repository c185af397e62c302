import unittest

from leasecache import ManualClock, memoize


class MemoTest(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock()
        self.calls = []

        @memoize(capacity=2, ttl=5, clock=self.clock)
        def double(x, plus=0):
            self.calls.append((x, plus))
            return 2 * x + plus

        self.double = double

    def test_second_call_is_served_from_the_cache(self):
        self.assertEqual(self.double(4), 8)
        self.assertEqual(self.double(4), 8)
        self.assertEqual(self.calls, [(4, 0)])

    def test_keywords_are_part_of_the_key(self):
        self.double(4, plus=1)
        self.double(4, plus=2)
        self.assertEqual(len(self.calls), 2)

    def test_result_is_computed_again_after_the_lease(self):
        self.double(4)
        self.clock.advance(5)
        self.double(4)
        self.assertEqual(len(self.calls), 2)
