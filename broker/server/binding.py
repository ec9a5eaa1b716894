"""Binding of the parts of a data directory, and the treatment of parts that do not belong (pure).

A directory has an identity and parts: the journal, and the wiring log (`wiring` of a node that is alone, `raft` of a
member). Belief in a part that is gone, empty, another's, or older than the last start does harm: an empty journal
says "this queue has no messages", and other nodes would cut their copies to that; an empty wiring log votes for the
first candidate. Every part therefore carries a *stamp*, (disk id, an id of its own, number of the start), and the
identity *lists* for each part the id and the number that it must have.

*Order.* The starts of a directory are numbered; the identity has the number n of the last one. Start n + 1

    1  looks at the stamps, and judges (below)
    2  stamps a part with n + 1, durably
    3  lists the part with n + 1 in the identity, durably
    4  lets that part speak: Raft sends and answers, the node registers, clients are accepted

Steps 2 and 3 may be done for several parts at once, step 4 comes after both. Consequences:

* *A sound directory never looks damaged.* A part is stamped before it is listed, so at every point of a crash its
  number is at least the listed one, and at most one above the identity's: that of the start that did not come to its
  end, which the next start uses again.
* *A part that went back is seen.* Its promises of start m were made when m was listed. A copy of an earlier start says
  less than m.
* *A part that is made anew is seen*, because its id is another one. Its id is listed in step 3, before it speaks; a
  crash between 2 and 3 leaves a part with this disk's id that the identity does not list yet: it is taken as it is.
* A return to a copy *of the same start* (a snapshot of one part alone, while the node ran) is not seen here, nor is a
  directory that went back as a whole: the other members see that (replication).

    listed  found                                    verdict
    no      nothing, and nothing shows that it lived  NEW      it is made
    no      nothing, but others show that it lived    MISSING  (a directory of a release without stamps)
    no      no stamp, or one of this disk             UNBOUND  it is taken and stamped: adopted, or a crash came between
    no      a stamp of another disk                   FOREIGN
    yes     nothing                                   MISSING
    yes     no stamp, another disk, another id        FOREIGN
    yes     a number below the listed one             OLDER
    yes     a number above the identity's + 1         AHEAD    the identity went back
    yes     anything else                             SOUND

*Treatment*: a member sets the part aside and is rebuilt from the others. For its journal every copy counts as damaged
(`RegisterNode.all_damaged` with `spare_last`, decision 013). Its Raft log is made anew under another id, so that Raft
takes the node for another one, a learner that never voted (guard rail G12); the queues' copies count as before. A
node that is alone, and a member without record of others, refuse to start.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from clusterbroker.journal.stamp import Stamp

JOURNAL: Final = "journal"
WIRING: Final = "wiring"
RAFT: Final = "raft"


class Listed(NamedTuple):
    """The identity's entry for a part."""

    part_id: str
    starts: int


class Found(NamedTuple):
    """A part as found on the disk."""

    there: bool
    stamp: Stamp | None


NOTHING: Final = Found(False, None)


class Verdict(enum.Enum):
    """See the table above."""

    NEW = "is to be made"
    UNBOUND = "is not bound yet"
    SOUND = "is what it says it is"
    MISSING = "is missing or empty"
    FOREIGN = "is another disk's, or was made anew"
    OLDER = "is older than the last start"
    AHEAD = "is newer than the identity"

    @property
    def is_damage(self) -> bool:
        return self not in (Verdict.NEW, Verdict.UNBOUND, Verdict.SOUND)


class Remedy(enum.Enum):
    USE = "as it is, or made now"
    REBUILD = "set aside, and rebuilt from the other members"
    REFUSE = "the node does not start"


def judge(disk_id: str, starts: int, listed: Listed | None, found: Found, lived: bool = False) -> Verdict:
    """`disk_id`, `starts`, `listed`: of the identity. `lived`: other parts show that this one was used, though no
    release that stamps has listed it."""
    if not found.there:
        return Verdict.MISSING if listed is not None or lived else Verdict.NEW
    stamp = found.stamp
    if listed is None:
        return Verdict.UNBOUND if stamp is None or stamp.disk_id == disk_id else Verdict.FOREIGN
    if stamp is None or stamp.disk_id != disk_id or stamp.part_id != listed.part_id:
        return Verdict.FOREIGN
    if stamp.starts < listed.starts:
        return Verdict.OLDER
    return Verdict.AHEAD if stamp.starts > starts + 1 else Verdict.SOUND


def remedy(part: str, verdict: Verdict, member: bool, others: bool) -> Remedy:
    """`others`: this member knows of other members. Their copies are compared later, by the map: a member that may have
    the only copy of a queue does not give up its journal."""
    if not verdict.is_damage:
        return Remedy.USE
    if not member or verdict is Verdict.AHEAD or (part == RAFT and not others):
        return Remedy.REFUSE
    return Remedy.REBUILD


def trouble(part: str, verdict: Verdict, starts: int, listed: Listed | None, found: Found) -> str:
    """The damage, for a line that has named the directory."""
    if verdict is Verdict.OLDER:
        assert found.stamp is not None, "a number was compared"
        assert listed is not None, "with another one"
        return (
            f"it is of start {found.stamp.starts} of this node, and start {listed.starts} used it: it went back in time"
        )
    if verdict is Verdict.AHEAD:
        assert found.stamp is not None, "a number was compared"
        return (
            f"it is of start {found.stamp.starts}, but DIR/identity knows of {starts}: the identity went back in time"
        )
    if verdict is Verdict.MISSING:
        return f"it is missing or empty, but this node has a {_NAMES[part]}"
    return f"it is not this node's {_NAMES[part]}: another disk's, or one that was made anew"


_NAMES: Final = {JOURNAL: "journal with its messages", WIRING: "wiring log with its queues", RAFT: "Raft log"}
