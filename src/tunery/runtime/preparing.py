"""What reads models: without a compiler, so that it begins while compilers are still being imported."""

from collections.abc import Mapping
from pathlib import Path

from tunery.domain import Network


class Preparer:
    """Brings model files to their normal form; `fake:` sources belong to the fake dialect."""

    def check(self, model: str) -> None:
        """Check what the name of a model tells by itself."""
        if model.startswith("fake:"):
            self.load(model, {}, Path())
            return
        from tunery.models import check

        check(model)

    def load(self, model: str, shapes: Mapping[str, tuple[int, ...]], directory: Path, trust: bool = False) -> Network:
        """Prepare a model file; with `trust` a torch program may run code that it holds."""
        if model.startswith("fake:"):
            from tunery.dialects.fake import fake_network

            return fake_network(model)
        from tunery.models import prepare

        return prepare(model, shapes, directory, trust=trust)

    def identify(self, model: str, shapes: Mapping[str, tuple[int, ...]], directory: Path, trust: bool = False) -> str:
        """Return the digest of the network that `load` would give, without preparing it."""
        if model.startswith("fake:"):
            return self.load(model, shapes, directory).digest
        from tunery.models import identify

        return identify(model, shapes, directory, trust=trust)
