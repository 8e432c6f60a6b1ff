"""What every worker of this dialect needs, imported once: seven workers would pay 0.3 s of CPU each."""

import lightgbm  # noqa: F401 - no thread of it starts before a fork

import tunery.dialects.metaschedule.codegen.compilation
import tunery.dialects.metaschedule.importing.extraction
import tunery.dialects.metaschedule.search.proposer  # noqa: F401
