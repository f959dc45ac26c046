# SPDX-License-Identifier: Apache-2.0
"""Cost parameters of a `Target`: multithreading, register tiles, Winograd convolutions, code sizes.

replace(get_target("x86-64-v3"), threads=Threads(barrier_ns=250), tiles=Tiles(latency=8))
"""

from aotc.ir import frozen


@frozen(kw_only=True)
class GpuCosts:
    """Figures of a GPU by which schedules of kernels and launches are compared.

    launch_statements            statements that one thread executes while another launch starts
    dependent_launch_statements  statements of a thread that take as long as a launch that starts after another one and
                                 reads its results from memory
    dependent_round_statements   statements that each iteration of a loop over blocks adds, as it waits for memory, too
    launch_elements              elements that one multiprocessor loads and stores while another launch starts: 128 KiB,
                                 64 bytes in each of 2,000 cycles
    barrier_statements           cost of a barrier of a block, in statements ...
    threads_per_barrier_statement    ... to which each of so many threads adds one statement
    uncoalesced_slowdown         factor on the time of loads by a warp that are not contiguous
    transaction_bytes            bytes of a memory transaction: farther accesses are other transactions in any case
    replicated_elements          largest number of elements that each thread computes for itself, in registers, instead
                                 of sharing them
    multiply_adds_per_cycle      scalar multiply-adds that a multiprocessor starts in a cycle
    copied_element               copy of an element of an operand to shared memory, in multiply-adds
    shared_load                  load of an element of shared memory to a register, in multiply-adds
    sums_per_cycle               partial sums that a multiprocessor stores and adds in a cycle
    last_block_accesses          number of dependent accesses to global memory between the end of a block's own work
                                 and the addition of partial sums: the block increments the counter of its tile, learns
                                 that it is the last block, and loads the partial sums that the blocks before it stored
    max_blocks_per_tile          largest number of blocks that compute one tile
    memory_latency_cycles        latency of global memory: the least time between two barriers that wait for loads
    processor_registers          32-bit registers of a multiprocessor
    loading_blocks               blocks of a multiprocessor that have enough loads in flight
    waves                        largest grid, as a multiple of the resident blocks of all multiprocessors; beyond it,
                                 threads execute several iterations each
    min_thread_elements          fewest elements of a thread if a reduction is divided among the threads of a block ...
    min_part_thread_elements     ... and if it is divided in parts, among several blocks
    min_part_elements            fewest elements of a reduction that is divided in parts
    min_gemm_side                extent of a side of a product below which threads of a block share reductions instead
                                 of computing tiles
    min_split_steps              fewest reduction steps of a product that are divided among threads
    """

    launch_statements: int = 128
    dependent_launch_statements: int = 256
    dependent_round_statements: int = 4
    launch_elements: int = 16 << 10
    barrier_statements: int = 4
    threads_per_barrier_statement: int = 64
    uncoalesced_slowdown: int = 8
    transaction_bytes: int = 32
    replicated_elements: int = 64
    multiply_adds_per_cycle: int = 128
    copied_element: float = 4
    shared_load: float = 1.5
    sums_per_cycle: float = 16
    last_block_accesses: int = 3
    max_blocks_per_tile: int = 8
    memory_latency_cycles: int = 700
    processor_registers: int = 64 << 10
    loading_blocks: int = 2
    waves: int = 8
    min_thread_elements: int = 4
    min_part_thread_elements: int = 16
    min_part_elements: int = 64
    min_gemm_side: int = 16
    min_split_steps: int = 64


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
    widened_load       conversion of a loaded vector of integers to a wider type; 0 if it was not measured
    load_addresses     vectors that a step of a tile can load from different addresses without computing them anew:
                       all, if loads have offsets, else those whose addresses fit into registers
    load_address       computing the address of each load beyond these
    finish             constant part of storing the results of a tile
    finish_vector      store of a vector of results
    finish_element     store of a single result
    finish_line_ratio  cost of finishing vectors whose bytes are narrowed and stored as a whole cache line, relative to
                       vectors one by one, if the weights fill at most half of the first-level cache
    large_copies       factor of the time if copies of operands are large:
    copies_l1_caches   in first-level caches, the size beyond which they are
    evicted_data       factor of the time of products whose data was evicted from the first-level cache:
    evicting_lines     the ratio of the cache lines that a tile reads to those that fit into the cache sets that they
                       map to, beyond which this is assumed
    l2_line            reading a line from the second-level cache, if it is not expected there
    widened_products   factor of the time of products whose operands are widened first and multiplied by a slow
                       instruction
    min_panel_rows     fewest rows that reuse weights for which copying the weights to contiguous panels is faster
    panel_l1_share     largest share of the first-level cache that the panel of a depthwise convolution fills
    narrowed_columns   tiles with more columns may be narrowed so that data that the next row of tiles reuses stays in
                       the first-level cache
    three_vector_rows  rows from which tiles of three vectors and fewer rows are faster, where rows compete for one
                       cache set
    partial_sums       for targets without vectors: partial sums of a reduction, whose additions hide each other's
                       latency
    low_bit_vectors    most vectors of columns in a tile of low-bit weights for a single row, which is also the layout
                       of these weights ...
    low_bit_vectors_of_rows    ... and for several rows
    low_bit_registers  registers that such a tile needs for constants and temporaries
    slowdown           factor of the whole time on cores that start one instruction at a time; the other
                       figures assume that loads, multiply-adds and loop control overlap
    scalar_columns     for targets without vectors: columns of tiles of one row, of two rows and so on
    min_tap_major_positions    fewest output positions of a convolution whose tiles compute the products of all input
                       channels at one tap of the kernel, then those at the next tap
    nchw_input_channels    most input channels of a convolution for which reading its data in the layout NCHW is faster
                       than a transposition to NHWC
    """

    latency: int = 4
    load: float = 0.75
    broadcast: float = 0.5
    widened_load: float = 0
    load_addresses: int = 1 << 30
    load_address: float = 2
    finish: float = 10
    finish_vector: float = 4
    finish_element: float = 1.1
    finish_line_ratio: float = 0.4
    large_copies: float = 1.08
    copies_l1_caches: int = 2
    evicted_data: float = 2
    evicting_lines: float = 2
    l2_line: float = 2.5
    widened_products: float = 3
    min_panel_rows: int = 16
    panel_l1_share: float = 0.5
    narrowed_columns: int = 5
    three_vector_rows: int = 32
    partial_sums: int = 4
    low_bit_vectors: int = 4
    low_bit_vectors_of_rows: int = 2
    low_bit_registers: int = 6
    slowdown: float = 1
    scalar_columns: tuple[int, ...] = (8, 4, 1, 4)
    min_tap_major_positions: int = 5
    nchw_input_channels: int = 4


@frozen(kw_only=True)
class CodeSize:
    """Figures by which the sizes of code and of stacks are estimated.

    The defaults were fitted to the kernels of three networks that arm-none-eabi-gcc 12 compiled for a Cortex-M4 with
    -Os; the errors for single kernels are up to 20 %.

    expression_bytes    bytes of code of a distinct expression ...
    loop_bytes          ... of a loop ...
    store_bytes         ... of a store or an instruction ...
    call_bytes          ... and of a call of a kernel in the schedule
    schedule_bytes      bytes of code of a schedule without its calls
    argument_bytes      bytes of code for passing one integer argument in a call
    merged_growth       factor by which the code of a kernel grows when its constants become arguments, which it must
                        load
    merged_arguments    most arguments that replace constants of one kernel; more would displace its own values from
                        registers
    min_int4_elements   fewest elements of a constant for which packing as int4 saves more than the unpacking code takes
    spilled_registers   most registers that a kernel is assumed to spill
    frame_words         words of the frame of a kernel beyond its arrays, spilled registers, loops and parameters
    caller_words        words of the frames of its callers
    """

    expression_bytes: float = 2.5
    loop_bytes: float = 4
    store_bytes: float = 15
    call_bytes: float = 49
    schedule_bytes: float = 300
    argument_bytes: float = 6
    merged_growth: float = 1.15
    merged_arguments: int = 24
    min_int4_elements: int = 256
    spilled_registers: int = 64
    frame_words: int = 24
    caller_words: int = 40


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
    strip_l2_caches                  size of a strip of tiles, in second-level caches, if the
                                     weights do not fit in one cache
    transformed_columns              most output columns that are transformed back at a time
    """

    macs: float = 1
    waiting: float = 0.5
    forward: float = 0.6
    forward_vector: float = 12
    backward: float = 1.2
    backward_vector: float = 8
    strip_l2_caches: int = 4
    transformed_columns: int = 64


@frozen(kw_only=True)
class Strips:
    """Figures of caches and registers by which attention and recurrent layers are divided.

    attention_strips_in_l2        strips of attention scores that would fill the second-level cache
    min_attention_rows            fewest rows of a strip of attention scores
    max_recurrence_rows           most rows of a register tile of a recurrent layer
    recurrence_block_overhead     overhead of a block of columns, in the time of so many vectors of weights
    interleaved_l2_caches         size of the recurrent weights, in second-level caches, up to which the products of
                                  the next inputs are interleaved: two streams of weights from more distant memory are
                                  slower than one
    input_tiles_beyond_l2         tiles of input rows per block that reuse weights, if the second-level cache does not
                                  hold all of the weights
    """

    attention_strips_in_l2: int = 8
    min_attention_rows: int = 16
    max_recurrence_rows: int = 6
    recurrence_block_overhead: float = 0.5
    interleaved_l2_caches: int = 2
    input_tiles_beyond_l2: int = 8


@frozen(kw_only=True)
class Budget:
    """Limits on the growth of code, parameters and memory that optimizations for speed may cause.

    stack_bytes       largest scratch memory of a kernel that may be placed on its stack
    row_bytes         size of a row of accumulators that fits in the L1 cache together with the operands
    array_bytes       parameters smaller than this become C arrays, larger ones a file that the assembler includes
    parameter_growth  largest factor by which parameters may grow (or by parameter_room bytes); 1 forbids growth
    parameter_saving  estimated cycles that each added byte of parameters must save per run
    group_padding     largest padding of the channels of a group to whole blocks, as a fraction of its channels, where
                      parameters may grow
    block_padding     largest padding of output channels to blocks that are larger than the smallest ones, as a fraction
                      of the channels
    unrolled          largest number of multiply-adds in an unrolled loop body
    written           largest number of multiply-adds in the code of one tiled contraction, border tiles included
    pieces            largest number of pieces that a loop nest may be split into where conditions change ...
    piece_nodes       ... and largest growth in expression nodes; beyond it, conditions stay inside the loops
    unpacked_bytes    int8 constants of at most this size in total are not packed as int4, where memory is not limited:
                      they are read from the second-level cache, and whole bytes are faster
    transposed        side of the square tiles of a transposition: one cache line of float32 elements; 1 disables tiling
    index_nodes       a tensor whose indices have more nodes is stored instead of recomputed at each read
    """

    stack_bytes: int = 4096
    row_bytes: int = 1024
    array_bytes: int = 64 << 10
    parameter_growth: float = 1.0
    parameter_room: int = 0
    parameter_saving: float = 0.08
    group_padding: float = 1.0
    block_padding: float = 1 / 8
    unrolled: int = 320
    written: int = 4096
    pieces: int = 512
    piece_nodes: int = 1 << 15
    unpacked_bytes: int = 1 << 20
    transposed: int = 16
    index_nodes: int = 256
