"""Any model source becomes one normal form: a static, simplified ONNX file and a `domain.Network` that describes it.

No compiler is imported in this room. `prepare` reads untrusted files with native libraries, so it belongs into an
importer worker, where a crash or a runaway allocation costs one call.
"""

from tunery.models import zoo
from tunery.models._prepare import check, identify, prepare, prepare_free

__all__ = ["check", "identify", "prepare", "prepare_free", "zoo"]
