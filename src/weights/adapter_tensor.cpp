#include "weights/adapter_tensor.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/error.h"

namespace hone {

namespace {

/// Calls body(element of the parameter, element of the file).
template <class Body>
void for_each_element(const AdapterBlock& block, const Body& body) {
  const auto &parameter = block.in_parameter.strides, &file = block.in_file.strides;
  for (int64_t i = 0; i < block.counts[0]; ++i) {
    for (int64_t j = 0; j < block.counts[1]; ++j) {
      const int64_t from = block.in_parameter.begin + i * parameter[0] + j * parameter[1];
      const int64_t to = block.in_file.begin + i * file[0] + j * file[1];
      for (int64_t k = 0; k < block.counts[2]; ++k) body(from + k * parameter[2], to + k * file[2]);
    }
  }
}

bool is_contiguous(const AdapterBlock& block, const AdapterBlock::Place& place) {
  const auto& [planes, rows, columns] = block.counts;
  return (columns == 1 || place.strides[2] == 1) && (rows == 1 || place.strides[1] == columns) &&
         (planes == 1 || place.strides[0] == rows * columns);
}

bool is_run(const AdapterBlock& block) {
  return block.factor == 1 && is_contiguous(block, block.in_parameter) && is_contiguous(block, block.in_file);
}

}  // namespace

int64_t AdapterTensor::numel() const {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

bool AdapterTensor::is_run() const {
  return blocks.size() == 1 && blocks.front().numel() == numel() && hone::is_run(blocks.front());
}

std::span<const float> gather(const AdapterTensor& tensor, const ParameterValues& values, std::vector<float>& scratch) {
  const auto numel = static_cast<size_t>(tensor.numel());
  if (tensor.is_run()) return {values(tensor.parameter()) + tensor.blocks.front().in_parameter.begin, numel};
  scratch.assign(numel, 0.0f);
  for (const AdapterBlock& block : tensor.blocks) {
    const float* from = values(*block.parameter);
    float* to = scratch.data();
    if (block.factor == 1) {
      for_each_element(block, [&](int64_t in_parameter, int64_t in_file) { to[in_file] = from[in_parameter]; });
    } else {
      for_each_element(block,
                       [&](int64_t in_parameter, int64_t in_file) { to[in_file] = block.factor * from[in_parameter]; });
    }
  }
  return scratch;
}

void scatter(const AdapterTensor& tensor, const std::vector<float>& file_values) {
  int64_t begin = tensor.blocks.front().in_parameter.begin;
  for (const AdapterBlock& block : tensor.blocks) begin = std::min(begin, block.in_parameter.begin);
  const auto count = static_cast<int64_t>(file_values.size());
  if (tensor.is_run()) return write_values(tensor.parameter(), begin, file_values.data(), count);
  std::vector<float> values(file_values.size());
  for (const AdapterBlock& block : tensor.blocks) {
    for_each_element(block, [&](int64_t in_parameter, int64_t in_file) {
      values[static_cast<size_t>(in_parameter - begin)] = file_values[static_cast<size_t>(in_file)];
    });
  }
  write_values(tensor.parameter(), begin, values.data(), count);
}

}  // namespace hone
