"""A probe of what chunks that do not see each other lose: facts in context, and questions about one or two of
them.

`task.py` generates the questions, `train.py` trained the small model that answers them, `checkpoint/` holds
it, and `python -m aerie.verify.recall` runs it, in every mode of chunks. Importing this package costs
nothing.
"""
