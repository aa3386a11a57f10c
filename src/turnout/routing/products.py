"""Products of quantized weights in a graph: what the CPU EP needs to compute them exactly.

At accuracy level 4 the CPU EP rounds activations to 8 bits. The session option
`mlas.qnbit.force_fp32` undoes that only on x86, for 4-bit weights in blocks of 32; any other
product is exact only from weights that were not packed for its kernel (measured on onnxruntime
1.32; onnxruntime pull request 31723 says the same).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.bundle.graph import GraphFile, Product

_INT8_LEVEL = 4
_FORCED_BITS, _FORCED_BLOCK = 4, 32


def needs_unpacked(graph: GraphFile, platform: str) -> bool:
    """Whether a graph has a product that is exact only from unpacked weights.

    `platform` is the catalog's `system-machine` word.
    """
    return any(_needs(product, platform) for product in graph.products)


def unpacked_stages(bundle: Bundle, platform: str) -> frozenset[str]:
    """The names of the stages of which `needs_unpacked` holds. Raises `GraphError`."""
    return frozenset(
        stage.name
        for stage in bundle.stages
        if stage.takes_options and needs_unpacked(bundle.graph(stage), platform)
    )


def _needs(product: Product, platform: str) -> bool:
    if product.accuracy_level != _INT8_LEVEL:
        return False
    forced = (product.bits, product.block_size) == (_FORCED_BITS, _FORCED_BLOCK)
    return not (forced and platform.endswith("-x86_64"))
