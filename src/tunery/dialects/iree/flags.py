"""What `iree-compile` is told of a whole network: sets of flags, of which each network gets the best."""

from collections.abc import Mapping

_O3 = "--iree-opt-level=O3"
_CHANNELS_LAST = (
    "--iree-preprocessing-pass-pipeline=builtin.module(util.func(iree-preprocessing-convert-conv-to-channels-last))"
)
_IM2COL = "--iree-global-opt-use-im2col-for-convs"
TUNED = (_O3, _CHANNELS_LAST, _IM2COL)
"""Those that tasks are taken with: convolutions become products of matrices, which configurations are searched for."""
FLAGS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "O3": (_O3,),
    "data-tiling": (_O3, "--iree-opt-data-tiling"),
    "channels-last": (_O3, _CHANNELS_LAST),
    "im2col": TUNED,
    "im2col-data-tiling": (*TUNED, "--iree-opt-data-tiling"),
}
_ROOM = ("--iree-llvmcpu-fail-on-large-vector=false", "--iree-llvmcpu-stack-allocation-limit=131072")
"""Without more than the 32 KiB of a stack that IREE allows itself, it refuses data tiling for many networks."""
SEARCHED: Mapping[str, tuple[str, ...]] = {
    "larger-stack": (*FLAGS["im2col-data-tiling"], *_ROOM),
    "microkernels": (*FLAGS["im2col-data-tiling"], *_ROOM, "--iree-llvmcpu-enable-ukernels=all"),
}
"""What is tried beside them. Microkernels (IREE's own code for single tiles) gain on some networks, lose on others."""
REWRITTEN = (
    *FLAGS["channels-last"],
    "--iree-opt-data-tiling",
    *_ROOM,
    "--iree-opt-outer-dim-concat=false",  # slices side by side are not to be transposed first
)
"""What is told of a network that `rewriting` wrote."""
REWRITINGS: Mapping[str, bool] = {"rewritten": True, "rewritten-direct": False}
"""How a network is rewritten, where that makes another one: with Winograd's algorithm or without."""
