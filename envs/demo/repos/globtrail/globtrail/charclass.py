"""Character classes: [abc], [a-z], [!abc]."""
import re


def read_class(text, start):
    """The regular expression of the class at text[start] and the index behind it."""
    end = text.find("]", start + 1)
    if end < 0:
        return re.escape("["), start + 1
    body = text[start + 1:end]
    negated = body.startswith("!")
    if negated:
        body = body[1:]
    members = _members(body)
    if negated:
        return "[^%s]" % members, end + 1
    return "[%s]" % members, end + 1


def _members(body):
    """Members of a class, with ranges kept and all else escaped."""
    out = []
    i = 0
    while i < len(body):
        if body[i + 1:i + 2] == "-" and i + 2 < len(body) and body[i] <= body[i + 2]:
            out.append("%s-%s" % (re.escape(body[i]), re.escape(body[i + 2])))
            i += 3
        else:
            out.append(re.escape(body[i]))
            i += 1
    return "".join(out)
