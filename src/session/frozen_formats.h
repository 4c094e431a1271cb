// How frozen weights are held: the values of base_weight_dtype and expert_weight_dtype, resolved to formats.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/packed_weights.h"

namespace hone {

/// A value of base_weight_dtype, for the frozen matrices of layers.
class BaseFormat {
 public:
  /// "dtype": dense, in the dtype of all weights.
  BaseFormat() = default;
  explicit BaseFormat(const PackedFormat& format) : packed_(&format) {}
  /// "dtype", "auto" (as the checkpoint has them) or the name of a packed format. UserError at `key` for other names.
  static BaseFormat parse(const std::string& name, const std::string& key);

  bool in_dtype() const { return packed_ == nullptr && !as_stored_; }
  bool as_stored() const { return as_stored_; }
  /// The packed format that is named; else null.
  const PackedFormat* packed() const { return packed_; }
  std::string_view name() const;

  bool operator==(const BaseFormat&) const = default;

 private:
  const PackedFormat* packed_ = nullptr;
  bool as_stored_ = false;
};

/// A value of expert_weight_dtype, for frozen weights of routed experts.
class ExpertFormat {
 public:
  /// "auto": in the dtype of the others.
  ExpertFormat() = default;
  /// A format that is not dense.
  explicit ExpertFormat(const WeightFormat& format) : other_(&format) {}
  /// "auto", "bfloat16" or the name of one of expert_formats(). UserError at `key` for other names.
  static ExpertFormat parse(const std::string& name, const std::string& key);

  /// Whether bfloat16 is stated.
  bool bfloat16() const { return bfloat16_; }
  const WeightFormat& format() const;
  std::string_view name() const;

  bool operator==(const ExpertFormat&) const = default;

 private:
  const WeightFormat* other_ = nullptr;
  bool bfloat16_ = false;
};

/// The names that BaseFormat takes.
const std::vector<std::string>& base_format_names();
/// The names that ExpertFormat takes.
const std::vector<std::string>& expert_format_names();
/// The formats of frozen experts that are not dense, each under its name. Packed formats, but that int8 is the one that
/// a CPU multiplies (formats/int8_weights.h); packed int8 is for all frozen weights.
const std::vector<const WeightFormat*>& expert_formats();

}  // namespace hone
