"""Consumers of several topics: which topics a pattern stands for, and how it is learned that they come and go."""
