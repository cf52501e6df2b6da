"""Where each setting comes from, for people who wonder why it has the value that it has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ductor_stream.config import VARIABLES, config_file, read_environment, read_file

DEFAULT = "default"


def origins(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """By setting (``kafka_bootstrap``, or ``kafka.linger.ms`` for an option): the variable or the file it is from.

    Settings that have their default are left out. Raises InvalidConfig as ``load`` does.
    """
    environ = os.environ if environ is None else environ
    file = str(config_file(environ))
    found = {name: file for name in _flat(read_file(environ))}
    from_environment = _flat(read_environment(environ))
    for variable, (setting, option) in VARIABLES.items():
        name = setting if option is None else f"{setting}.{option}"
        if name not in from_environment:
            continue
        for named in (variable, f"{variable}_FILE"):
            if environ.get(named):
                found[name] = named
    return found


def _flat(settings: Mapping[str, Any]) -> list[str]:
    names: list[str] = []
    for name, value in settings.items():
        names += [f"{name}.{option}" for option in value] if isinstance(value, dict) else [name]
    return names
