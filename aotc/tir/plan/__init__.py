# SPDX-License-Identifier: Apache-2.0
"""The whole model as a static program: kernels, storage, a schedule of kernel calls, and a memory plan."""
