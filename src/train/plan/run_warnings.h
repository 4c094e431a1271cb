// Settings that are allowed and seldom meant: what a user should know before the first step.
#pragma once

#include <string>
#include <vector>

#include "train/plan/described_run.h"

namespace hone {

/// A sentence for each of these, with the way out: weight decay that takes a whole weight in a step; a schedule whose
/// floor is its peak; a run of a few steps; steps that each read the whole data set.
std::vector<std::string> doubtful_settings(const DescribedRun& run);

}  // namespace hone
