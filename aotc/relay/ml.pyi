# SPDX-License-Identifier: Apache-2.0
from aotc.relay.op.builders import compact_tree_ensemble as compact_tree_ensemble
from aotc.relay.op.builders import couple_probabilities as couple_probabilities
from aotc.relay.op.builders import tree_ensemble as tree_ensemble
from aotc.relay.op.builders import tree_votes as tree_votes
