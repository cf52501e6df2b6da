"""A deterministic simulation of the production coordinator, worker and client on memory ports.

Virtual time, one seed that decides every interleaving, faults at every port call, and one checker per
rule. ``python -m ductor_stream.testing.simulation --seeds 0:1000`` runs it; the same seed gives the same trace.
"""

from ductor_stream.testing.simulation.episode import Episode, Report
from ductor_stream.testing.simulation.world import Limits

__all__ = ["Episode", "Limits", "Report", "simulate"]


def simulate(seed: int, limits: Limits | None = None) -> Report:
    """Run one seed to its end; ``Report.broken`` says which rule did not hold, if any."""
    return Episode(seed, limits or Limits()).run()
