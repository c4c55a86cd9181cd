"""The version of the classifier's rules. It changes whenever an answer may change other than by the tables."""

CLASSIFIER_VERSION = "2"
