"""Mutants: small faults put into the product one at a time, and the tests that have to find them.

A table for each room (`rooms/*.toml`) has what is changed, what that breaks, and which tests should fail.
`python -m tests.mutants` tries them; `--help` tells how.
"""
