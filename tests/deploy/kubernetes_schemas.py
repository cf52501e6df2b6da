"""Strict schemas of Kubernetes's own kinds, and of those that KEDA and the Prometheus operator add."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor

_ADDED = {model.__name__: model for model in (ScaledObject, PrometheusRule, ServiceMonitor)}


def problem(document: dict[str, Any], version: str) -> str | None:
    """What Kubernetes (such as ``1.36``) would refuse in this object, or None. Unknown fields are refused too."""
    if document["kind"] in _ADDED:
        errors = list(jsonschema.Draft202012Validator(_schema(document["kind"])).iter_errors(document))
        return errors[0].message if errors else None
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return None


@cache
def _schema(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = _ADDED[kind].model_json_schema(by_alias=True)
    _close(schema)
    return schema


def _close(schema: Any) -> None:
    """The models allow any further field; the cluster's own definitions drop it, and then something is not as meant."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            _close(value)
    elif isinstance(schema, list):
        for value in schema:
            _close(value)
