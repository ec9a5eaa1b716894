"""One checker per invariant (I1 to I30), with an omniscient view of maps, rings, disks and clients.

Sites and sockets tell what happens (`Checkers`), `History` remembers it once for all checkers, and each checker looks
at the events that concern it. A violation ends the run.
"""

from tests.simulation.checkers.bench import Checkers
from tests.simulation.checkers.history import Violation

__all__ = ["Checkers", "Violation"]
