"""From the functions and annotations that users write to declarations: read once, at import, and refused if wrong.

It must not do anything with the outside world but read source files, and must not keep state: that is ``App``'s.
"""
