"""Rewrites of a program's IR before C++ is made of it, in the order in which they run (`pipeline`)."""
