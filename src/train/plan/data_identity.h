// Identity of the data of a run and of their order, to check that a resumed run continues with the same data.
#pragma once

#include <string>

#include "config/run_config.h"
#include "core/text/json_fwd.h"
#include "data/dataset/dataset_builder.h"

namespace hone {

/// For each data set the numbers of samples and tokens and a hash; a hash of the validation data; and every option that
/// the order and the batches depend on. Equal identities give equal steps.
Json data_identity(const TrainingData& data, const RunConfig& config);

/// Describes how the training data or their order differ: "the data set 'chat' has changed: 120 samples of 4,500
/// tokens, was 119 of 4,470; max_length is 64, was 128". Empty if they are equal.
std::string identity_difference(const Json& before, const Json& now);

/// Whether the validation data differ, which makes evaluations before and after incomparable.
bool eval_differs(const Json& before, const Json& now);

}  // namespace hone
