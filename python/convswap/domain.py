"""The domain of the library's ops, its version, and what its ops compute."""

import onnx_ir as ir

DOMAIN = "convswap"
DOMAIN_VERSION = 1
SUPPORTED_ELEMENT_TYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)
