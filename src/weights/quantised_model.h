// Writing a model in a quantised format that transformers reads: FP8 blocks as DeepSeek-V3's, MXFP4 as gpt-oss's files
// (weights/stored_tensor.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "params/parameter_store.h"
#include "weights/checkpoint.h"

namespace hone {

/// A tensor that was rounded, and ‖rounded − W‖ / ‖W‖.
struct RoundedTensor {
  std::string name;
  double error = 0;
};

/// Writes the weights of `source`, which is not quantised, as model.safetensors or as numbered shards with an index,
/// into an existing directory: FP8 blocks of 128 x 128 for the matrices of layers except routers, or MXFP4 for routed
/// experts; other tensors keep their bytes. One tensor at a time is in memory. UserError if no weight of the model can
/// have the format, or a matrix has a NaN or an infinity.
std::vector<RoundedTensor> save_quantised(const std::filesystem::path& directory, const ParameterStore& store,
                                          const Checkpoint& source, const CheckpointMap& map, QuantMethod method,
                                          ThreadPool& pool, const SaveOptions& options);

}  // namespace hone
