"""How near to the default of a parameter its good values are expected. It is here, since the command line needs it."""

from typing import Literal

Trust = Literal["none", "low", "medium", "high"]
