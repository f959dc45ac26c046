# SPDX-License-Identifier: Apache-2.0
"""Cost parameters of a `Target`: multithreading, register tiles and Winograd convolutions.

replace(get_target("x86-64-v3"), threads=Threads(barrier_ns=250), tiles=Tiles(latency=8))
"""

from aotc.ir import frozen


@frozen(kw_only=True)
class Threads:
    """Costs of running a kernel on several threads, and a rough measure of the speed of one core.

    macs_per_ns, bytes_per_ns   multiply-adds that a core executes, and bytes that it
                                processes, per nanosecond
    fetched_bytes_per_ns        bytes per nanosecond read from another core's cache,
                                with prefetching
    owned_bytes_per_ns          bytes per nanosecond written to lines that another core
                                owns: each line waits for its transfer
    barrier_ns                  the cost of a barrier
    cached_bytes                size of the private cache of a core
    reordered                   factor on the time of loops whose order was changed,
                                which use the caches less well
    worth_ns, worth_moving_ns   kernels that take less time run on one thread; the
                                second is for kernels that only move data, much of
                                which would move between caches
    teams                       numbers of threads for which partitions of a kernel are
                                compared
    long, parts                 reductions over at least `long` elements are split into
                                `parts` partial sums for any number of threads, so
                                that results do not depend on it
    """

    macs_per_ns: float = 50
    bytes_per_ns: float = 80
    fetched_bytes_per_ns: float = 40
    owned_bytes_per_ns: float = 10
    barrier_ns: float = 100
    cached_bytes: int = 1 << 19
    reordered: float = 1.1
    worth_ns: float = 300
    worth_moving_ns: float = 1000
    teams: tuple[int, ...] = (2, 4)
    long: int = 1 << 14
    parts: int = 8


@frozen(kw_only=True)
class Tiles:
    """Costs, in cycles, of the register tiles of contractions.

    latency            from the start of a multiply-add to its result
    load               load of a vector (or half a vector) of the size that the multiply-add units process
                       per cycle
    broadcast          broadcast of one element to a vector
    finish             constant part of storing the results of a tile
    finish_vector      store of a vector of results
    finish_element     store of a single result
    large_copies       factor of the time if copies of operands do not fit the first-level cache
    scalar_columns     for targets without vectors: columns of tiles of one row, of two rows and so on
    """

    latency: int = 4
    load: float = 0.75
    broadcast: float = 0.5
    finish: float = 10
    finish_vector: float = 4
    finish_element: float = 1.1
    large_copies: float = 1.08
    scalar_columns: tuple[int, ...] = (8, 4, 1, 4)


@frozen(kw_only=True)
class Winograd:
    """Cycles that a Winograd convolution takes.

    macs                             multiply-adds of float32 that its products do in a cycle
    waiting                          the share of the time for reading weights from
                                     memory in which nothing else is done
    forward, backward                for one channel, each element of a tile on its
                                     way to the products and back
    forward_vector, backward_vector  for one channel, each vector of elements of a
                                     transformed tile
    """

    macs: float = 1
    waiting: float = 0.5
    forward: float = 0.6
    forward_vector: float = 12
    backward: float = 1.2
    backward_vector: float = 8
