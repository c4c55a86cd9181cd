"""Count the words of a text."""

from wordcount.count import WordCount, count_words, most_common, words

__all__ = ["WordCount", "count_words", "most_common", "words"]
