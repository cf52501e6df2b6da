"""What users test their workflows with: a run in this process, on a virtual clock, without Kafka or Postgres.

``TestEnv`` runs the production engine; what it leaves out is everything that is not a decision.
"""

from ductor_stream.testing.env import Stuck, TestEnv, TestHandle
from ductor_stream.testing.replay import export_history, replay_history

__all__ = ["Stuck", "TestEnv", "TestHandle", "export_history", "replay_history"]
