// One tensor of an adapter's file, as blocks of parameters.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "params/parameter_store.h"

namespace hone {

/// counts[0] · counts[1] · counts[2] elements, and the places of each: [i, j, k] stands at
/// begin + i · strides[0] + j · strides[1] + k · strides[2], in the parameter and in the file.
struct AdapterBlock {
  struct Place {
    int64_t begin = 0;
    std::array<int64_t, 3> strides = {0, 0, 1};
  };

  Parameter* parameter = nullptr;
  std::array<int64_t, 3> counts = {1, 1, 1};
  Place in_parameter, in_file;
  float factor = 1;  ///< of the file's values over the parameter's

  /// `count` elements that lie alike in both, the file's first.
  static AdapterBlock run(Parameter& parameter, int64_t begin, int64_t count) {
    return {&parameter, {1, 1, count}, {.begin = begin}, {}};
  }
  int64_t numel() const { return counts[0] * counts[1] * counts[2]; }
};

struct AdapterTensor {
  std::string key;
  std::vector<int64_t> dims;
  std::vector<AdapterBlock> blocks;  ///< elements of the file in none of them are zero
  bool whole = false;                ///< a weight that is saved whole
  /// Of one expert's matrix: KTransformers' tensor of all experts, in which it stands as in the parameter.
  std::string kt_key = {};

  int64_t numel() const;
  /// Of a tensor with the elements of one parameter.
  Parameter& parameter() const { return *blocks.front().parameter; }
  /// Whether the file has a run of the parameter as it lies there.
  bool is_run() const;
};

using ParameterValues = std::function<const float*(const Parameter&)>;

/// The file's values, out of those of whole parameters: where they lie if they are a run, or in `scratch`.
std::span<const float> gather(const AdapterTensor& tensor, const ParameterValues& values, std::vector<float>& scratch);

/// Writes the file's values into the parameter. The blocks hold one run of its elements, in any order.
void scatter(const AdapterTensor& tensor, const std::vector<float>& file_values);

}  // namespace hone
