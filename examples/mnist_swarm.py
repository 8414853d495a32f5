"""Several processes train one network on MNIST; one is killed inside an all-reduce, the others finish in agreement.

python examples/mnist_swarm.py                        four peers, one dies
python examples/mnist_swarm.py --kill 0               the coordinator dies
python examples/mnist_swarm.py --slow 2:4 --sizer proportional --plot run.png
python examples/mnist_swarm.py --founders 5 --listen tcp://0.0.0.0:4001      and on a second machine:
python examples/mnist_swarm.py peer --join tcp://PEERID@HOST:4001
"""

import os
import sys

# Linear algebra on one thread, unless the user wants more: the matrices are small, the processes share few cores.
# It has to be said before numpy is imported, here and in the processes that are started from here.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def _main() -> int:
    try:
        # Imported late: a Ctrl-C in the second that this takes is no traceback either.
        if sys.argv[1:] == ["child"]:
            from swarm.child import main as child  # noqa: PLC0415

            return child()
        from swarm.cli import main  # noqa: PLC0415

        return main(sys.argv[1:])
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(_main())
