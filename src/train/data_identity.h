// What a run trains on and in which order, so that a resumed run can tell whether it would go on with the same.
#pragma once

#include <string>

#include "core/json_fwd.h"
#include "data/dataset_builder.h"
#include "session/run_config.h"

namespace hone {

/// Of every data set samples, tokens and a hash of them; of the validation data a hash; and every option that the order
/// and the batches depend on. Equal identities give equal steps.
Json data_identity(const TrainingData& data, const RunConfig& config);

/// What of the training data or its order differs, for a person: "the data set 'chat' has changed: 120 samples of 4,500
/// tokens, was 119 of 4,470; max_length is 64, was 128". Empty: nothing.
std::string identity_difference(const Json& before, const Json& now);

/// Whether the validation data differ, so that evaluations before and after cannot be compared.
bool eval_differs(const Json& before, const Json& now);

}  // namespace hone
