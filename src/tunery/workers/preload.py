"""What every TVM worker needs, imported once in the zygote: seven workers would pay 0.3 s of CPU each."""

import lightgbm  # noqa: F401 - no thread of it starts before a fork

import tunery.dialects.metaschedule.compilation
import tunery.dialects.metaschedule.extraction
import tunery.dialects.metaschedule.proposer
import tunery.workers.services  # noqa: F401
