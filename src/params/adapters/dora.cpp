#include "params/adapters/dora.h"

#include <cmath>

#include "core/memory/buffer.h"
#include "core/text/json.h"
#include "ops/dora/dora.h"
#include "ops/unpack_weights/unpack_weights.h"
#include "params/payload.h"

namespace hone {

namespace {

constexpr const char* kMagnitude = ".lora_magnitude_vector";

}  // namespace

DoraAdapter::DoraAdapter(const AdapterSite& site)
    : LoraAdapter(site), magnitude_(&site.add(kMagnitude, {site.place.out_count})) {
  low_rank_.factors.magnitude = magnitude_;
}

std::vector<AdapterPart> DoraAdapter::tensors() const {
  std::vector<AdapterPart> parts = LoraAdapter::tensors();
  parts.push_back({magnitude_, AdapterPart::Role::kOther, kMagnitude});
  return parts;
}

void DoraAdapter::initialise(const Context& context, const Parameter& adapted, uint64_t seed, LoraInit init) const {
  LoraAdapter::initialise(context, adapted, seed, init);
  const bool packed = adapted.value().packed();
  const size_t bytes = packed ? static_cast<size_t>(adapted.shape().numel()) * size_of(adapted.value().dtype()) : 0;
  const Buffer memory(context.device(), bytes);
  WeightView weight = adapted.value().whole_view();
  if (packed) {
    weight = {.payload = memory.tensor(adapted.shape(), adapted.value().dtype())};
    unpack_weights(context, {packed_layout(adapted), adapted.value().whole(), weight.payload});
  }
  dora_norm(context, {.w = weight,
                      .shape = adapted.shape(),
                      .lora_a = low_rank_.a->value().whole(),
                      .lora_b = low_rank_.b->value().whole(),
                      .scaling = low_rank_.factors.scaling,
                      .norms = magnitude_->value().whole()});
  if (packed && !context.dry()) context.stream().synchronize();  // the memory is local
}

Var DoraAdapter::forward(Tape& tape, Var x, Weight& weight, Weight* bias, const LoraDropoutContext& rows) const {
  return dora_linear(tape, x, weight, bias, low_rank_.factors, rows);
}

void DoraAdapter::merge_row(std::span<float> row, int64_t output) const {
  double squares = 0;
  for (const float value : row) squares += static_cast<double>(value) * static_cast<double>(value);
  if (squares == 0) return;
  const double norm = magnitude_->value().whole().as<float>()[output];
  const auto factor = static_cast<float>(norm / std::sqrt(squares));
  for (float& value : row) value *= factor;
}

void DoraAdapter::merge_row(std::span<double> row, std::span<double> bounds, int64_t output) const {
  double squares = 0, squared_bounds = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    squares += row[i] * row[i];
    squared_bounds += bounds[i] * bounds[i];
  }
  // The norm has the error of all numbers of the row.
  const double factor = magnitude_->value().whole().as<float>()[output] / std::sqrt(squares);
  const double of_norm = 1 + std::sqrt(squared_bounds / squares);
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] *= factor;
    bounds[i] = bounds[i] * std::abs(factor) + std::abs(row[i]) * of_norm;
  }
}

void describe_dora(const LoraOptions& options, Json& config) { config["use_dora"] = options.use_dora; }

void read_dora(const Json& config, LoraOptions& options) {
  options.use_dora = config.contains("use_dora") && config["use_dora"] == true;
}

}  // namespace hone
