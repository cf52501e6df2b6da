"""A function of the user's that brings OAUTHBEARER tokens: named in the configuration, called by the driver."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from ductor_stream.errors import InvalidConfig
from ductor_stream.telemetry.logs import get_logger

OPTION = "oauth_cb"
"""What the setting is called, as in Confluent's client; its value is ``module:function``."""

_log = get_logger(__name__)


class TokenFunction:
    """The function that ``module:function`` names; the working directory is looked in too, as for apps.

    It is given ``sasl.oauthbearer.config`` and returns the token and when it expires (seconds since 1970), and, where the
    broker wants them, the principal and a dictionary of extensions. It is called from threads of the driver's, again
    before each token expires, and again some seconds after it has raised.
    """

    def __init__(self, named: object) -> None:
        """Find it. Raises InvalidConfig."""
        self._named = str(named)
        module, _, name = self._named.partition(":")
        if not module or not name:
            raise InvalidConfig(f"kafka option {OPTION!r} is {named!r}; name a function as module:function")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        try:
            self._function = getattr(importlib.import_module(module), name)
        except Exception as error:
            raise InvalidConfig(f"kafka option {OPTION!r}: {named} cannot be loaded: {error}") from error
        if not callable(self._function):
            raise InvalidConfig(f"kafka option {OPTION!r}: {named} is no function")
        self.problem = f"{named} has given none yet"
        """Why there was no token when it was last asked for."""

    def __call__(self, config: str) -> Any:
        """What the function says. The driver itself would only tell that there is no token."""
        try:
            return self._function(config)
        except Exception as error:
            self.problem = f"{self._named} raised {type(error).__name__}: {error}"
            _log.exception("no token for Kafka", function=self._named)
            raise
