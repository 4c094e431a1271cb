// Cosines and sines of rotary position embeddings (RoPE), with the scalings that extend a model's context.
//
// Angles: position p rotates pair i of the first rotary_dim dimensions by p · f_i, where the inverse frequency f_i is
// theta^(-2i / rotary_dim), modified by the scaling. Sources: Su et al., "RoFormer" (arXiv:2104.09864); Peng et al.,
// "YaRN" (arXiv:2309.00071). Defaults, order of operations and float32 roundings are those of Hugging Face transformers
// 5 (modeling_rope_utils), so that tables agree to the last bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace hone {

enum class RopeType {
  kDefault,
  kLinear,        ///< f / factor
  kDynamic,       ///< theta grows with run_length beyond max_position_embeddings ("NTK")
  kYarn,          ///< f for fast dimensions, f / factor for slow ones, linear ramp between; scales cos and sin
  kLlama3,        ///< as kYarn, with a ramp over wavelengths and without scaling of cos and sin
  kProportional,  ///< f / factor for the first pairs, by `proportion`; the others do not turn
};

/// Parses a config's `rope_type` ("default", "linear", "dynamic", "yarn", "llama3", "proportional"). UserError for
/// others.
RopeType rope_type_of(std::string_view name);

/// The members of a config's `rope_parameters` (older: `rope_scaling`), with the same names.
struct RopeScaling {
  RopeType type = RopeType::kDefault;
  std::optional<double> factor = {};  ///< required except kDefault; kYarn: default max_position_embeddings / original
  std::optional<int64_t> original_max_position_embeddings = {};  ///< kYarn, kLlama3; default max_position_embeddings
  // kYarn
  double beta_fast = 32.0;  ///< dimensions with at least this many rotations over the original context keep f
  double beta_slow = 1.0;   ///< dimensions with at most this many rotations use f / factor
  std::optional<double> mscale = {}, mscale_all_dim = {}, attention_factor = {};
  bool truncate = true;  ///< round the ramp's borders to whole dimensions
  // kDynamic
  std::optional<double> alpha = {};  ///< theta is multiplied by alpha^(d / (d - 2)) at any length; no factor then
  // kLlama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // kProportional
  double proportion = 1.0;  ///< share of the pairs that turn; its key is partial_rotary_factor

  bool operator==(const RopeScaling&) const = default;
};

struct RopeParameters {
  double rope_theta = 10000.0;
  int64_t rotary_dim = 0;  ///< head_dim · partial_rotary_factor, with kProportional head_dim; even
  int64_t max_position_embeddings = 0;
  RopeScaling scaling = {};

  bool operator==(const RopeParameters&) const = default;
};

struct RopeFrequencies {
  std::vector<float> inverse;      ///< [rotary_dim / 2]
  float attention_scaling = 1.0f;  ///< factor of cos and sin
};

/// YaRN's scale of queries and keys for a context extended by `factor` (equation 22 of the paper, with mscale / 10 as
/// the weight of the logarithm).
double yarn_mscale(double factor, double mscale);

/// Frequencies for sequences of up to `run_length` tokens. Only kDynamic depends on it: up to max_position_embeddings
/// it is the default RoPE; beyond, a single table for the run is computed for sequences of `run_length` tokens
/// (transformers computes a new one whenever a longer sequence occurs). UserError for parameters out of range.
RopeFrequencies rope_frequencies(const RopeParameters& parameters, int64_t run_length);

/// [positions, rotary_dim / 2], row-major.
struct RopeTableValues {
  std::vector<float> cos, sin;
};

/// The table of positions [0, positions).
RopeTableValues rope_table_values(const RopeFrequencies& frequencies, int64_t positions);

/// A scale of queries that grows with the position: 1 + beta · log(1 + floor(position / length)), as of Llama 4 and
/// Mistral-Small-4. beta 0: no scale.
struct QueryScaling {
  double beta = 0;
  int64_t length = 0;

  bool operator==(const QueryScaling&) const = default;
};

/// The table that rotates and scales whole heads of queries, whose first `unturned` pairs `rope` leaves as they are: a
/// scale is a rotation by 0 times that scale. Both tables have the pairs of a head in the order of its dimensions.
RopeTableValues scaled_query_table(const RopeTableValues& rope, int64_t positions, int64_t unturned,
                                   const QueryScaling& scaling);

}  // namespace hone
