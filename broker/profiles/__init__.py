"""Operator files: where profiles are found, how they are read safely, and what they may say."""

from broker.profiles.load import BrokenProfile, list_profiles, load_profile

__all__ = ["BrokenProfile", "list_profiles", "load_profile"]
