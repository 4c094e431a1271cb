// The names of RecomputeLevel: how much of the forward pass backward recomputes to save memory.
#pragma once

#include <string>
#include <vector>

#include "tape/tape.h"

namespace hone {

/// none, norms, activations, experts, all_but_attention, everything: from the fastest to the least memory.
const std::vector<std::string>& recompute_levels();

/// The policy of a level: recomputes the nodes marked for it (Node::recomputed_from()). UserError for another name.
RecomputePolicy recompute_policy(const std::string& level);

}  // namespace hone
