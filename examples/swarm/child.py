"""One process of a swarm, as the launcher starts it: work comes in on standard input, reports go out as JSON lines."""

from __future__ import annotations

from functools import partial

from swarm.leash import Leash


def main() -> int:
    """Do the work; returns the exit status."""
    leash = Leash()
    # Only now what takes long to import: a launcher that is killed meanwhile takes this process with it.
    import anyio  # noqa: PLC0415

    from hydra_net import HydraError  # noqa: PLC0415
    from swarm import data  # noqa: PLC0415
    from swarm.errors import UserError  # noqa: PLC0415
    from swarm.peer import run_child  # noqa: PLC0415
    from swarm.reports import Failed, print_json  # noqa: PLC0415
    from swarm.work import Work, decode_join  # noqa: PLC0415

    work = Work.decode(leash.line())
    try:
        dataset = data.load(work.settings.data)
        join = decode_join(leash.line()) if work.waits else []
        anyio.run(partial(run_child, work, dataset, join, print_json), backend=work.backend)
    except (HydraError, UserError) as error:
        code = error.code if isinstance(error, UserError) else 1
        print_json(Failed(str(error), code))
        return code
    return 0
