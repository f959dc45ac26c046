# SPDX-License-Identifier: Apache-2.0
"""GPU back end of the tensor-program layer: map kernels to launches of thread blocks.

Input: a program whose steps are kernel calls. Output: a program whose steps are GPU launches.

`lower_to_launches` makes one launch, or several, from each kernel. `kernel_fission` finds the parts
of a kernel that can be launched separately, and the values that one part passes to the next;
`thread_block_mapping` assigns the iterations of a loop nest, and scratch memory, to threads;
`block_per_row` assigns outer iterations to blocks and inner loops to their threads;
`thread_coarsening` gives one thread several neighboring iterations and widens its memory accesses
where `parameter_alignment` proved them aligned; `shared_memory_transpose` stages tiles in shared
memory where loads and stores run along different axes; `horizontal_fusion` merges independent
launches, `vertical_fusion` a launch and its successor.
"""
