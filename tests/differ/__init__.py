"""The same program of the official Python client at Apache's broker and at ours: what it meets must be the same.

A seed is a program (`program`). Each side runs it (`runner`), the outcomes are brought into one form (`normal`), what
differs is shrunk to a few events (`shrink`) and printed. What is meant to differ stands in `differences`, with the
reason; what differed once is kept in `kept.txt`. `make differ` runs it; docs/simulation.md explains it.
"""
