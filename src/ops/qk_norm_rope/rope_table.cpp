#include "ops/qk_norm_rope/rope_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "core/base/error.h"

namespace hone {

namespace {

constexpr std::array<std::pair<std::string_view, RopeType>, 6> kNames{{{"default", RopeType::kDefault},
                                                                       {"linear", RopeType::kLinear},
                                                                       {"dynamic", RopeType::kDynamic},
                                                                       {"yarn", RopeType::kYarn},
                                                                       {"llama3", RopeType::kLlama3},
                                                                       {"proportional", RopeType::kProportional}}};

void require(bool condition, std::string_view key, std::string_view rule) {
  if (condition) return;
  throw UserError("a parameter of the rotary position embedding is out of range", std::string(key),
                  "make it " + std::string(rule));
}

/// theta^(2i / dim): the exponent is rounded to float32, and so is the power.
std::vector<float> base_powers(double theta, int64_t dim) {
  std::vector<float> powers;
  for (int64_t i = 0; i < dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dim);
    powers.push_back(static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent)));
  }
  return powers;
}

std::vector<float> reciprocals(std::vector<float> values) {
  for (float& value : values) value = 1.0f / value;
  return values;
}

double required_factor(const RopeScaling& scaling) {
  require(scaling.factor.has_value(), "rope_parameters.factor", "a number (this rope_type needs it)");
  return *scaling.factor;
}

int64_t original_length(const RopeParameters& p) {
  const int64_t length = p.scaling.original_max_position_embeddings.value_or(p.max_position_embeddings);
  require(length > 0, "rope_parameters.original_max_position_embeddings", "positive");
  return length;
}

std::vector<float> linear(const RopeParameters& p) {
  const auto factor = static_cast<float>(required_factor(p.scaling));
  std::vector<float> inverse = reciprocals(base_powers(p.rope_theta, p.rotary_dim));
  for (float& f : inverse) f /= factor;
  return inverse;
}

std::vector<float> dynamic(const RopeParameters& p, int64_t run_length) {
  require(p.max_position_embeddings > 0, "max_position_embeddings", "positive");
  require(p.rotary_dim > 2, "head_dim", "larger than 2 for rope_type dynamic");
  const auto dim = static_cast<double>(p.rotary_dim);
  if (p.scaling.alpha) {
    return reciprocals(base_powers(p.rope_theta * std::pow(*p.scaling.alpha, dim / (dim - 2)), p.rotary_dim));
  }
  const double factor = required_factor(p.scaling);
  const auto longest = static_cast<double>(std::max(run_length, p.max_position_embeddings));
  const double stretch = factor * longest / static_cast<double>(p.max_position_embeddings) - (factor - 1);
  return reciprocals(base_powers(p.rope_theta * std::pow(stretch, dim / (dim - 2)), p.rotary_dim));
}

RopeFrequencies yarn(const RopeParameters& p) {
  const RopeScaling& s = p.scaling;
  const auto original = static_cast<double>(original_length(p)), dim = static_cast<double>(p.rotary_dim);
  const double factor = s.factor.value_or(static_cast<double>(p.max_position_embeddings) / original);
  require(factor > 0, "rope_parameters.factor", "positive");
  require(s.beta_fast > 0 && s.beta_slow > 0, "rope_parameters.beta_fast, beta_slow", "positive");
  // The dimension that rotates `rotations` times over the original context.
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(p.rope_theta));
  };
  double low = dimension_of(s.beta_fast), high = dimension_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;

  RopeFrequencies result;
  const std::vector<float> powers = base_powers(p.rope_theta, p.rotary_dim);
  for (size_t i = 0; i < powers.size(); ++i) {
    const float kept = 1.0f / powers[i], interpolated = 1.0f / (static_cast<float>(factor) * powers[i]);
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float share_kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    result.inverse.push_back(interpolated * (1.0f - share_kept) + kept * share_kept);
  }
  double scaling = yarn_mscale(factor, 1.0);
  const double mscale = s.mscale.value_or(0.0), mscale_all_dim = s.mscale_all_dim.value_or(0.0);
  if (mscale != 0 && mscale_all_dim != 0) scaling = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim);
  result.attention_scaling = static_cast<float>(s.attention_factor.value_or(scaling));
  return result;
}

std::vector<float> llama3(const RopeParameters& p) {
  const RopeScaling& s = p.scaling;
  const auto factor = static_cast<float>(required_factor(s));
  require(s.high_freq_factor > s.low_freq_factor && s.low_freq_factor > 0, "rope_parameters.high_freq_factor",
          "larger than low_freq_factor, and both positive");
  const auto original = static_cast<double>(original_length(p));
  const auto longest_wave = static_cast<float>(original / s.low_freq_factor);
  const auto shortest_wave = static_cast<float>(original / s.high_freq_factor);
  std::vector<float> inverse = reciprocals(base_powers(p.rope_theta, p.rotary_dim));
  for (float& f : inverse) {
    const float wave = static_cast<float>(2 * std::numbers::pi) / f;
    if (wave > longest_wave) {
      f /= factor;
    } else if (wave >= shortest_wave) {
      const float smooth = (static_cast<float>(original) / wave - static_cast<float>(s.low_freq_factor)) /
                           static_cast<float>(s.high_freq_factor - s.low_freq_factor);
      f = (1.0f - smooth) * f / factor + smooth * f;
    }
  }
  return inverse;
}

std::vector<float> proportional(const RopeParameters& p) {
  require(p.scaling.proportion >= 0 && p.scaling.proportion <= 1, "rope_parameters.partial_rotary_factor", "in [0, 1]");
  const auto turned = static_cast<size_t>(p.scaling.proportion * static_cast<double>(p.rotary_dim) / 2);
  std::vector<float> inverse = reciprocals(base_powers(p.rope_theta, p.rotary_dim));
  const auto factor = static_cast<float>(p.scaling.factor.value_or(1.0));
  for (size_t i = 0; i < inverse.size(); ++i) inverse[i] = i < turned ? inverse[i] / factor : 0.0f;
  return inverse;
}

}  // namespace

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

RopeType rope_type_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
    names.push_back(known);
  }
  throw UserError("rope_type '" + std::string(name) + "' is not supported." + did_you_mean(name, names),
                  "rope_parameters.rope_type",
                  "use a model with rope_type default, linear, dynamic, yarn, llama3 or proportional");
}

RopeFrequencies rope_frequencies(const RopeParameters& p, int64_t run_length) {
  require(p.rotary_dim > 0 && p.rotary_dim % 2 == 0, "head_dim", "such that the rotated dimensions are even in number");
  require(p.rope_theta > 1 && std::isfinite(p.rope_theta), "rope_theta", "a finite number larger than 1");
  require(p.scaling.factor.value_or(1.0) > 0, "rope_parameters.factor", "positive");
  switch (p.scaling.type) {
    case RopeType::kLinear:
      return {.inverse = linear(p)};
    case RopeType::kDynamic:
      return {.inverse = dynamic(p, run_length)};
    case RopeType::kYarn:
      return yarn(p);
    case RopeType::kLlama3:
      return {.inverse = llama3(p)};
    case RopeType::kProportional:
      return {.inverse = proportional(p)};
    case RopeType::kDefault:
      break;
  }
  return {.inverse = reciprocals(base_powers(p.rope_theta, p.rotary_dim))};
}

RopeTableValues rope_table_values(const RopeFrequencies& frequencies, int64_t positions) {
  RopeTableValues table;
  const auto size = static_cast<size_t>(positions) * frequencies.inverse.size();
  table.cos.reserve(size);
  table.sin.reserve(size);
  for (int64_t position = 0; position < positions; ++position) {
    for (const float f : frequencies.inverse) {
      const float angle = f * static_cast<float>(position);
      table.cos.push_back(std::cos(angle) * frequencies.attention_scaling);
      table.sin.push_back(std::sin(angle) * frequencies.attention_scaling);
    }
  }
  return table;
}

RopeTableValues scaled_query_table(const RopeTableValues& rope, int64_t positions, int64_t unturned,
                                   const QueryScaling& scaling) {
  const size_t turned = rope.cos.size() / static_cast<size_t>(positions);
  RopeTableValues table;
  const size_t size = static_cast<size_t>(positions) * (static_cast<size_t>(unturned) + turned);
  table.cos.reserve(size);
  table.sin.reserve(size);
  for (int64_t position = 0; position < positions; ++position) {
    const auto spans = static_cast<float>(position / scaling.length);
    const float scale = 1.0f + static_cast<float>(scaling.beta) * std::log(1.0f + spans);
    table.cos.insert(table.cos.end(), static_cast<size_t>(unturned), scale);
    table.sin.insert(table.sin.end(), static_cast<size_t>(unturned), 0.0f);
    const size_t row = static_cast<size_t>(position) * turned;
    for (size_t i = row; i < row + turned; ++i) {
      table.cos.push_back(scale * rope.cos[i]);
      table.sin.push_back(scale * rope.sin[i]);
    }
  }
  return table;
}

}  // namespace hone
