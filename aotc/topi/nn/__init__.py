# SPDX-License-Identifier: Apache-2.0
"""Questions about operators of neural networks: `topi.nn.utils.get_pad_tuple`."""
