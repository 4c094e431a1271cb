// How much of the forward pass backward computes again to save memory: levels, each with what the ones before it do.
#pragma once

#include <string>
#include <vector>

#include "tape/tape.h"

namespace hone {

/// none, norms, activations, experts, everything: from the fastest to the smallest.
const std::vector<std::string>& recompute_levels();

/// What a level computes again: norms, rotations and latent keys; activations of dense MLPs; gate and up of experts (a
/// third of the experts' products more); everything but what crosses blocks. UserError for another name.
RecomputePolicy recompute_policy(const std::string& level);

}  // namespace hone
