// The logits of all tokens of a batch, in one pass.
#pragma once

#include <vector>

#include "nn/batch.h"
#include "nn/forward.h"
#include "session/pass_companions.h"

namespace hone {

/// Logits [tokens, vocabulary] in float32, computed in memory of this call's own, after which the stream is idle.
/// `batch` has tokens, on the companions' stream; their decoder is prepared for its lengths. `forward`: what the pass
/// reads and records besides the batch. Collective where ranks keep parts of the weights; each has a batch of its own.
std::vector<float> batch_logits(PassCompanions& companions, const DeviceBatch& batch, Forward forward = {});

}  // namespace hone
