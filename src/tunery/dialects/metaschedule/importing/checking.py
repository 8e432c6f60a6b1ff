"""Whether a workload from elsewhere is what it says it is."""

from tunery._errors import DialectError
from tunery.dialects.metaschedule.constructs import check_program
from tunery.dialects.metaschedule.importing.lowering import argument_specs
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.variants.program import parsed
from tunery.domain import Workload


def check_workload(workload: Workload) -> None:
    """Check that a workload's program consists of known constructs, has its key, and takes its arguments."""
    check_program(workload.program)
    try:
        specs = argument_specs(parsed(workload.key, workload.program)["main"])
    except DialectError:
        raise
    except Exception as error:
        raise DialectError(f"the program of workload {workload.key} cannot be read: {reason_of(error)}") from error
    told = [(list(spec.shape), spec.dtype) for spec in workload.arguments]
    if specs != told or not 1 <= workload.outputs <= len(told):
        raise DialectError(f"the program of workload {workload.key} takes other arguments than the workload says")
