"""Programs of grid operations: their execution, their rewards on hidden demonstrations, and tables of these.

A program is a sequence of operations, and its last step is a readout that is fitted on the demonstrations. `DEPTH_1`
has one program for each operation, at the operation's index, and the readout of the inputs as the last one.
"""

from searchlight.models.arc.programs.operation import Operation
from searchlight.models.arc.programs.operations import FAMILIES, OPERATIONS
from searchlight.models.arc.programs.program import Executor, Program, ProgramResult, execute
from searchlight.models.arc.programs.ranking import FreeEnergy, rank
from searchlight.models.arc.programs.reward_table import DEPTH_1, RewardTable

__all__ = [
    "DEPTH_1",
    "Executor",
    "FAMILIES",
    "FreeEnergy",
    "OPERATIONS",
    "Operation",
    "Program",
    "ProgramResult",
    "RewardTable",
    "execute",
    "rank",
]
