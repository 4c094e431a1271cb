#include "train/plan/memory_rows.h"

#include <fmt/format.h>

#include "report/humanise.h"

namespace hone {

std::vector<MemoryRow> memory_rows(const MemoryPlan& plan, const RunPrecision& precision,
                                   const std::string& activations) {
  const ParameterBytes& p = plan.parameters;
  const TrainingFormats& formats = precision.formats;
  const bool stepped = precision.weights == DType::kF32 || formats.master == DType::kBF16;
  const auto shared = [&](ZeroStage by) {
    const bool parts = precision.ranks > 1 && precision.stage >= by;
    return parts ? fmt::format(", one of {} ranks' parts", precision.ranks) : "";
  };
  const std::string base = precision.base.in_dtype()    ? ""
                           : precision.base.as_stored() ? ", frozen ones as stored"
                                                        : fmt::format(", frozen ones {}", precision.base.name());
  const auto tiles_of = [](const char* modules, int64_t tile) {
    return tile > 0 ? fmt::format(", {} in tiles of {} tokens", modules, tile) : "";
  };
  const std::string tiles = tiles_of("experts", plan.moe_token_tile) + tiles_of("MLPs", plan.mlp_token_tile);
  const char* inputs = precision.layer_inputs == LayerInputFormat::kFp8 ? ", layer inputs fp8" : "";
  const std::string experts = precision.experts->dense() ? "" : fmt::format(", experts {}", precision.experts->name());
  std::vector<MemoryRow> rows = {
      {"weights", static_cast<uint64_t>(p.weights),
       fmt::format("{}{}{}{}", name_of(precision.weights), experts, base, shared(ZeroStage::kValues))},
      {"master weights", static_cast<uint64_t>(p.master),
       stepped ? "the weights themselves" : "float32" + shared(ZeroStage::kState)},
      {"gradients", static_cast<uint64_t>(p.gradients),
       fmt::format("{}{}{}", name_of(formats.gradient),
                   precision.layers_share_gradients ? ", one half of a layer after the other" : "",
                   shared(ZeroStage::kGradients))},
      {"optimizer", static_cast<uint64_t>(p.moments),
       precision.optimizer.describe(formats) + shared(ZeroStage::kState)},
      {"activations", static_cast<uint64_t>(plan.activations), activations + inputs + tiles},
      {"batch", static_cast<uint64_t>(plan.batch), ""}};
  if (plan.libraries.all > 0) {
    rows.push_back({"libraries", static_cast<uint64_t>(plan.libraries.all), "of CUDA and NCCL, measured on an H200"});
  }
  return rows;
}

std::string host_memory_line(const MemoryPlan& plan, int64_t available) {
  if (plan.host() == 0) return "";
  const std::string of = available > 0 ? fmt::format(" of {}", human_bytes(available)) : "";
  const int64_t shared = plan.parameters.shared;
  const std::string once =
      shared > 0 ? fmt::format(" ({} of it this rank's share of experts that its host holds once)", human_bytes(shared))
                 : "";
  return fmt::format("host memory {}{}{}", human_bytes(plan.host()), of, once);
}

}  // namespace hone
