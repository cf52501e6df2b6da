"""Decision tables and CEL expressions: compiled and checked at their declaration, decided without the outside world.

Nothing here knows runs, steps or queues; ``ductor_stream.work.Rule`` makes a step of it. The library for CEL is
imported when the first rule is declared, so that an app without rules does not need it.
"""
