import io
import os
import tempfile
import unittest

from globtrail import Selection, walk
from globtrail.__main__ import main


class SelectionTest(unittest.TestCase):
    def test_last_match_decides(self):
        selection = Selection(["docs/*", "!docs/draft*", "docs/draft-final"])
        paths = ["docs/a", "docs/draft-1", "docs/draft-final", "b"]
        self.assertEqual(selection.filter(paths), ["docs/a", "docs/draft-final"])

    def test_nothing_is_selected_by_default(self):
        self.assertNotIn("a", Selection())

    def test_walk(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "a", "b"))
            for name in ("a/x.txt", "a/b/y.txt", "a/b/z.md"):
                open(os.path.join(root, name), "w").close()
            self.assertEqual(walk(root, Selection(["a/**"])), ["a/b/y.txt", "a/b/z.md", "a/x.txt"])

    def test_command_line(self):
        out = io.StringIO()
        code = main(["*.md"], ["a.md\n", "b.txt\n", "\n"], out)
        self.assertEqual((code, out.getvalue()), (0, "a.md\n"))
