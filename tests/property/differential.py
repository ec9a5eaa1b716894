"""One node against three: the same conversations with both, and every word compared.

    python -m tests.property.differential --seeds 1000          calm ones, and as many with faults
    python -m tests.property.differential --seed 7 --faults     one of them, told line by line

`proxy_world` checks promises where everything may come in any order; this one knows the whole answer, since one node
gives it, and looks at it between the steps only. The node, its sessions and its queues are real, disks and links are
played (`tests.unit.broker.node.node_cluster`).

What may be different, and why nobody was promised otherwise:

    flags           after faults three may flag what one does not: `true` means maybe. Never the other way round
    order of dead   in transactions, and when several die of one settlement. These die in the order of the queue, not in
                    that of delivery tags; and letters travel after the commit of their death, so what a transaction
                    publishes to their target itself may come before them. Order is promised per publisher and queue,
                    and to their target the letters' publisher is the queue that they died in, whose order they keep.
                    The letters themselves are compared. Failovers and hand-overs change no order
    refused commit  the connection ends with the same 541, but one node may hand out to it a moment longer
    x-acquired-count  is not kept over a failover; nor does it count what is lost with a node
    TTL in transactions   begins with the commit, not the publish: no queue has both here
    time of death   in whole seconds, of two clocks

The order of answers among themselves is compared, and that of contents, but not how they mix.
"""

from __future__ import annotations

import argparse
import sys
import traceback

from tests.property.differential_talk import Talk


def differs(seed: int, faults: bool) -> list[str]:
    """The story of the conversation if it is not the same with both, the difference as its last line."""
    talk = Talk(seed, faults)
    try:
        talk.run()
    except AssertionError as error:
        return [*talk.story, str(error) or traceback.format_exc()]
    return []


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many, calm and with faults each")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one, with --faults or without")
    parser.add_argument("--faults", action="store_true")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        story = differs(options.seed, options.faults)
        print("\n".join(story) or "the same")
        return bool(story)
    found = 0
    for seed in range(options.first, options.first + options.seeds):
        for faults in (False, True):
            if story := differs(seed, faults):
                found += 1
                print("\n".join([story[0], *story[-12:], "-----"]), flush=True)
    print(f"{options.seeds} seeds, calm and with faults: {found} differences")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
