# SPDX-License-Identifier: Apache-2.0
"""Plan a whole model as a static program: kernels, storage, a schedule of kernel calls, and a
memory plan.
"""
