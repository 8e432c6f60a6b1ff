"""What reads models: without a compiler, so that it begins while compilers are still being imported."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tunery._errors import BlobNotFoundError
from tunery.blobs import Blobs
from tunery.dialects import named_dialect, own_network
from tunery.domain import Network, TensorSpec


class Preparer:
    """Brings model files to their normal form, which it keeps as blobs; a dialect's own networks need none.

    It works where the user's file is: on the host of who asks.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def check(self, model: str) -> None:
        if own_network(model) is not None:
            return
        from tunery.models import check

        check(model)

    def load(
        self, model: str, shapes: Mapping[str, tuple[int, ...]], trust: bool = False, temporary: bool = False
    ) -> Network:
        """Prepare a model, unless that was done before; with `trust` a torch program may run code that it holds.

        The network's blob is in use until somebody releases it; a `temporary` one that was not there is gone then.
        """
        if (own := own_network(model)) is not None:
            return own
        from tunery.models import original_of, prepare

        with self._blobs.scratch() as directory:
            network = prepare(model, shapes, directory, trust=trust, known=self._known)
            if network.weights and (directory / network.weights).exists():
                self._put_weights(network, directory)

            def keep(path: Path, key: str) -> str:
                if path.parent != directory and (blob := self._blobs.find(key)):
                    return blob
                self._drop_if_damaged(key)
                # It carries a digest of its own, which `prepare` looks at: the disk need not be waited for.
                blob = self._blobs.put(path, move=path.parent == directory, temporary=temporary, sync=False)
                self._blobs.remember(key, blob)
                return blob

            blob = keep(Path(network.path), _key(network.digest))
            original = keep(Path(network.original), _key(original_of(network.digest)))
        return replace(network, path="", blob=blob, original=original)

    def load_free(
        self,
        model: str,
        bindings: Sequence[Mapping[str, tuple[int, ...]]],
        outputs: Sequence[Sequence[TensorSpec]],
        trust: bool = False,
    ) -> Network:
        """Return a model as it is, with its dimensions free; `outputs` are what it gives with each of the `bindings`.

        The network's blob is gone once it is released.
        """
        from tunery.models import prepare_free

        with self._blobs.scratch() as directory:
            network = prepare_free(model, bindings, outputs, directory, trust=trust)
            blob = self._blobs.put(Path(network.path), move=True, temporary=True, sync=False)
        return replace(network, path="", blob=blob)

    def identify(self, model: str, shapes: Mapping[str, tuple[int, ...]], trust: bool = False) -> str:
        if (own := own_network(model)) is not None:
            return own.digest
        from tunery.models import identify

        with self._blobs.scratch() as directory:
            return identify(model, shapes, directory, trust=trust)

    def _put_weights(self, network: Network, directory: Path) -> None:
        """Keep the file of a network's large weights, which lies beside the prepared file wherever both are in use.

        It goes with those who use it: what is kept has further names, and onnx reads no such file for a model.
        """
        path = directory / network.weights
        self._blobs.put(path, move=True, temporary=True, sync=False, known=network.weights)

    def _drop_if_damaged(self, key: str) -> None:
        blob = self._blobs.find(key)
        if blob is not None:
            with suppress(BlobNotFoundError):
                self._blobs.get(blob, verify=True)

    def _known(self, digest: str) -> Path | None:
        blob = self._blobs.find(_key(digest))
        if blob is None:
            return None
        return self._blobs.get(blob)


def _key(digest: str) -> str:
    return f"prepared network {digest}"


def absolute(model: str) -> str:
    """Return a model's name as a process in another directory may use it: a file's whole path, any other as it is."""
    return model if model.startswith("zoo:") or named_dialect(model) else str(Path(model).resolve())
