// How much of the forward pass backward computes again to save memory: the names of RecomputeLevel.
#pragma once

#include <string>
#include <vector>

#include "tape/tape.h"

namespace hone {

/// none, norms, activations, experts, everything: from the fastest to the smallest.
const std::vector<std::string>& recompute_levels();

/// What a level computes again: of its nodes those that say so (Node::recomputed_from()). UserError for another name.
RecomputePolicy recompute_policy(const std::string& level);

}  // namespace hone
