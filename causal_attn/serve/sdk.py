"""The one door to the KServe SDK: what the server takes from it, by its own names.

Importing it reads the command line of the process with a parser of its own, which ends the process
at words that it half knows. So it is imported while there is none.
"""

from __future__ import annotations

import sys

from causal_attn.errors import MissingDependencyError

__all__ = [
    "DataPlane",
    "InferInput",
    "InferOutput",
    "InferRequest",
    "InferResponse",
    "InferenceServicer",
    "InvalidInput",
    "Model",
    "ModelNotFound",
    "ModelRepository",
    "ModelRepositoryExtension",
    "RequestedOutput",
    "V2Endpoints",
    "add_servicer",
    "messages",
]

_arguments, sys.argv = sys.argv, sys.argv[:1]
try:
    from kserve import (
        InferInput,
        InferOutput,
        InferRequest,
        InferResponse,
        Model,
        ModelRepository,
    )
    from kserve.errors import InvalidInput, ModelNotFound
    from kserve.protocol.dataplane import DataPlane
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import (
        add_GRPCInferenceServiceServicer_to_server as add_servicer,
    )
    from kserve.protocol.grpc.servicer import InferenceServicer
    from kserve.protocol.infer_type import RequestedOutput
    from kserve.protocol.model_repository_extension import ModelRepositoryExtension
    from kserve.protocol.rest.v2_endpoints import V2Endpoints
except ImportError as error:
    raise MissingDependencyError(
        "Serving needs the KServe SDK. Install it with: pip install 'causal-attn[serve]'",
        name=error.name,
    ) from error
finally:
    sys.argv = _arguments
