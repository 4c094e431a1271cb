// Values for the adapters that a pattern of names selects: PEFT's rank_pattern and alpha_pattern.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "params/parameter.h"

namespace hone {

/// One entry of a pattern mapping. `pattern` is attention, all-linear, all-experts, or (re: before it or not) a regular
/// expression (PCRE2) that a module's whole name matches, or its end from a dot on: "q_proj", "layers\.0\..*v_proj",
/// "experts.gate_up_proj". Source: PEFT, get_pattern_key.
struct LoraPattern {
  std::string pattern;
  double value = 0;

  bool operator==(const LoraPattern&) const = default;
};

/// The names of one adapter.
struct AdapterNames {
  const Parameter* adapted = nullptr;
  std::vector<std::string> whole;                 ///< names of its module, or of the fused weight of its experts
  std::vector<std::vector<std::string>> experts;  ///< names of the modules of each expert
};

/// Names of the adapter of a whole linear or fused weight, or of the part of an expert weight at `out_begin`.
AdapterNames adapter_names(const Parameter& adapted, std::optional<int64_t> part_begin = std::nullopt);

class LoraPatterns {
 public:
  /// `key` is the config key, for errors. UserError for a regular expression that does not compile.
  LoraPatterns(const std::vector<LoraPattern>& patterns, std::string key);
  ~LoraPatterns();

  /// The value of the first pattern that matches. UserError for one that matches some experts of a layer only: their
  /// adapters share one tensor.
  std::optional<double> find(const AdapterNames& names);

  /// UserError with near names if a pattern has not matched any of the adapters asked for.
  void require_all_used() const;

 private:
  struct Entry;
  bool matches(const Entry& entry, const AdapterNames& names) const;

  std::string key_;
  std::vector<Entry> entries_;
  std::vector<std::string> leaves_;  // the last parts of all names asked for
};

}  // namespace hone
