"""Verifying a candidate without timing it: no quiet device is needed, and any worker will do."""

from tunery.devices import Device
from tunery.dialects import Built, Codegen, Dialect
from tunery.domain import Task, Verification
from tunery.measuring.references import References
from tunery.measuring.verification import compare, merge


class Unmeasured:
    """Compares candidates with references in this process; hangs and crashes are ended from outside."""

    def __init__(self, dialect: Dialect, device: Device) -> None:
        self._codegen, self._device = Codegen.of(dialect), device
        self._references = References(dialect, device, None)

    def verify(self, task: Task, built: Built, reference: Built) -> Verification:
        """Return the verdict on as many independent inputs as delivery asks for, each into poisoned outputs."""
        if built.path == reference.path:
            return Verification("is the reference", Verification.FULL, 0.0, passed=True)
        kernel = self._codegen.load(task, built, self._device)
        verdicts = []
        for number in range(Verification.FULL):
            inputs, expected = self._references.get(task, reference, number)
            kernel.bind(inputs)
            kernel.poison()
            kernel.run()
            verdicts.append(compare(expected, kernel.outputs(), slack=kernel.slack))
            if not verdicts[-1].passed:
                break
        return merge(verdicts)
