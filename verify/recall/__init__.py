"""A probe of what chunks that do not see each other lose: facts in context, and questions over one or two.

`task.py` draws the questions, `train.py` made the small model that answers them, `checkpoint/` is it, and
`python -m aerie.verify.recall` asks it, in every mode of chunks. Importing this package costs nothing.
"""
