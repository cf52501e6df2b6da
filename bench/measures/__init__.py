"""The measures of README.md's table, one module each: a function that takes a ``Bench`` and fills its results."""
