#include "params/adapters/lora.h"

#include <cmath>

#include "core/text/json.h"
#include "ops/cast/cast.h"
#include "ops/linear/linear.h"
#include "ops/random_fill/random_fill.h"
#include "params/expert_parts.h"
#include "params/random_weights.h"

namespace hone {

LoraAdapter::LoraAdapter(const AdapterSite& site) : AttachedAdapter(site) {
  const bool experts = is_experts(site.adapted);
  const auto add = [&](const std::string& factor, int64_t rows, int64_t columns) {
    return &site.add(factor + (experts ? "" : ".weight"),
                     experts ? Shape{site.adapted.shape()[0], rows, columns} : Shape{rows, columns});
  };
  low_rank_.a = add(".lora_A", site.scale.rank, site.adapted.shape()[-1]);
  low_rank_.b = add(".lora_B", site.place.out_count, site.scale.rank);
  low_rank_.factors = {.lora_a = low_rank_.a,
                       .lora_b = low_rank_.b,
                       .scaling = static_cast<float>(site.options.scaling(site.scale.alpha, site.scale.rank)),
                       .dropout = static_cast<float>(site.options.dropout),
                       .stream_id = site.stream_id};
}

std::vector<AdapterPart> LoraAdapter::tensors() const {
  return {{low_rank_.a, AdapterPart::Role::kA, ".lora_A.weight"},
          {low_rank_.b, AdapterPart::Role::kB, ".lora_B.weight"}};
}

void LoraAdapter::initialise(const Context& context, const Parameter&, uint64_t seed, LoraInit init) const {
  const auto fill = [&](const Parameter& p, Distribution distribution, float scale) {
    fill_stored(context, p, [&](const Tensor& values) {
      random_fill(context,
                  {.dst = values, .distribution = distribution, .scale = scale, .key = random_key(seed, p.name())});
    });
  };
  const auto kaiming = [](const Parameter& p) { return std::sqrt(1.0f / static_cast<float>(p.shape()[-1])); };
  const Parameter &a = *low_rank_.a, &b = *low_rank_.b;
  if (init == LoraInit::kGaussian) {
    fill(a, Distribution::kNormal, 1.0f / static_cast<float>(a.shape()[-2]));
  } else {
    fill(a, Distribution::kUniform, kaiming(a));
  }
  if (init == LoraInit::kRandom) {
    fill(b, Distribution::kUniform, kaiming(b));
  } else {
    fill_stored(context, b, [&](const Tensor& values) { fill_zero(context, values); });
  }
}

Var LoraAdapter::forward(Tape& tape, Var x, Weight& weight, Weight* bias, const LoraDropoutContext& rows) const {
  return linear(tape, x, weight, bias, &low_rank_.factors, rows);
}

void describe_lora(const LoraOptions& options, Json& config) { config["use_rslora"] = options.use_rslora; }

void read_lora(const Json& config, LoraOptions& options) {
  options.use_rslora = config.contains("use_rslora") && config["use_rslora"] == true;
}

}  // namespace hone
