"""`python3 -m wordcount [FILE ...]`: print the ten most frequent words."""

import fileinput

from wordcount import most_common

with fileinput.input(encoding="utf-8") as lines:
    for entry in most_common(lines, 10):
        print(f"{entry.count:6d} {entry.word}")
