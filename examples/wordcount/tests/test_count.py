"""What counting promises."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from wordcount import WordCount, count_words, most_common, words

POEM = ["The fog comes", "on little cat feet.", "", "It sits looking", "over harbor and city"]


class Words(unittest.TestCase):
    def test_punctuation_belongs_to_no_word(self) -> None:
        self.assertEqual(list(words(["feet. (it) sits;"])), ["feet", "it", "sits"])

    def test_an_apostrophe_inside_belongs_to_the_word(self) -> None:
        self.assertEqual(list(words(["don't 'quote' well-kept"])), ["don't", "quote", "well-kept"])

    def test_letters_of_any_language_are_letters(self) -> None:
        self.assertEqual(list(words(["naïve façade über"])), ["naïve", "façade", "über"])

    def test_digits_are_no_words(self) -> None:
        self.assertEqual(list(words(["3 cats, 2024"])), ["cats"])


class Counting(unittest.TestCase):
    def test_upper_and_lower_case_are_the_same_word(self) -> None:
        self.assertEqual(count_words(["The fog, the harbor, THE city"])["the"], 3)

    def test_nothing_has_no_words(self) -> None:
        self.assertEqual(count_words([]), {})

    def test_the_most_frequent_come_first_and_ties_by_alphabet(self) -> None:
        self.assertEqual(
            most_common(["b a c b a", "b"], 2), [WordCount(word="b", count=3), WordCount(word="a", count=2)]
        )


class CommandLine(unittest.TestCase):
    def test_a_file_is_counted_by_another_process(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "poem.txt")
            path.write_text("\n".join(POEM), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, "-m", "wordcount", str(path)], capture_output=True, text=True, check=True
            )
        self.assertEqual(len(done.stdout.splitlines()), 10)


if __name__ == "__main__":
    unittest.main()
