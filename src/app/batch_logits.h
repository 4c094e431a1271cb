// The logits of all tokens of a batch, in one pass.
#pragma once

#include <vector>

#include "nn/decoder.h"
#include "session/loaded_model.h"
#include "train/step/device_batch.h"

namespace hone {

/// Logits [tokens, vocabulary] in float32, computed in memory of this call's own, after which the stream is idle.
/// `batch` is on the stream's device, whose decoder is prepared for its lengths. `forward`: what the pass reads and
/// records besides the batch.
std::vector<float> batch_logits(LoadedModel& model, Stream& stream, const DeviceBatch& batch, Forward forward = {});

}  // namespace hone
