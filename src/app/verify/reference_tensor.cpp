#include "app/verify/reference_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "weights/safetensors.h"

namespace hone {

namespace {

constexpr size_t kHashes = 4;  // words of one philox counter
/// Fewer buckets have too much variance: a distance from 4 x 64 buckets has a standard deviation of 4 %.
constexpr size_t kLeastBuckets = 64;
constexpr size_t kElementsPerBucket = 64;
constexpr uint64_t kSketchKey = 0x736b65746368;  // "sketch"
constexpr const char* kSums = ".sketch";
constexpr const char* kRowNorms = ".row_norms";

size_t buckets_of(size_t elements) {
  return std::max(kLeastBuckets, (elements + kElementsPerBucket - 1) / kElementsPerBucket);
}

double norm_of(std::span<const float> values) {
  double sum = 0;
  for (float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

double distance_of(std::span<const float> a, std::span<const float> b) {
  HONE_ASSERT(a.size() == b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

std::vector<std::span<const float>> rows_of(const HostTensor& tensor) {
  const auto count = static_cast<size_t>(tensor.rows());
  const size_t size = count == 0 ? 0 : tensor.values.size() / count;
  std::vector<std::span<const float>> rows;
  for (size_t row = 0; row < count; ++row) rows.push_back(std::span(tensor.values).subspan(row * size, size));
  return rows;
}

std::vector<float> row_norms(const HostTensor& tensor) {
  std::vector<float> norms;
  for (const std::span<const float> row : rows_of(tensor)) norms.push_back(static_cast<float>(norm_of(row)));
  return norms;
}

}  // namespace

TensorSketch sketch(const HostTensor& tensor) {
  const size_t buckets = buckets_of(tensor.values.size());
  std::vector<double> sums(kHashes * buckets, 0.0);
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const auto words = philox(kSketchKey, {static_cast<uint32_t>(i), static_cast<uint32_t>(uint64_t{i} >> 32), 0, 0});
    const auto value = static_cast<double>(tensor.values[i]);
    for (size_t hash = 0; hash < kHashes; ++hash) {
      const uint32_t word = words[hash];
      const size_t bucket = static_cast<size_t>((uint64_t{word >> 1} * buckets) >> 31);
      sums[hash * buckets + bucket] += (word & 1) != 0 ? value : -value;
    }
  }
  return {row_norms(tensor), {sums.begin(), sums.end()}};
}

ReferenceTensor thinned(HostTensor tensor) {
  const size_t elements = tensor.values.size();
  const size_t numbers = kHashes * buckets_of(elements) + static_cast<size_t>(tensor.rows());
  if (2 * numbers > elements) return tensor;
  return sketch(tensor);
}

double norm(const HostTensor& tensor) { return norm_of(tensor.values); }

double norm(const ReferenceTensor& tensor) {
  if (const auto* sketched = std::get_if<TensorSketch>(&tensor)) return norm_of(sketched->row_norms);
  return norm(std::get<HostTensor>(tensor));
}

double distance(const HostTensor& ours, const ReferenceTensor& reference) {
  const auto* sketched = std::get_if<TensorSketch>(&reference);
  if (sketched == nullptr) return distance_of(ours.values, std::get<HostTensor>(reference).values);
  const TensorSketch own = sketch(ours);
  const double by_rows = distance_of(own.row_norms, sketched->row_norms);
  const double by_buckets = distance_of(own.sums, sketched->sums) / std::sqrt(static_cast<double>(kHashes));
  return std::isnan(by_rows) || by_rows > by_buckets ? by_rows : by_buckets;
}

int64_t nonzero_rows(const HostTensor& ours, const ReferenceTensor& reference) {
  const auto* sketched = std::get_if<TensorSketch>(&reference);
  const std::vector<float> norms = sketched ? sketched->row_norms : row_norms(std::get<HostTensor>(reference));
  const std::vector<std::span<const float>> rows = rows_of(ours);
  int64_t count = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    count += norms[row] == 0 && std::any_of(rows[row].begin(), rows[row].end(), [](float v) { return v != 0.0f; });
  }
  return count;
}

bool has_shape(const ReferenceTensor& reference, const HostTensor& ours) {
  const auto* sketched = std::get_if<TensorSketch>(&reference);
  if (sketched == nullptr) return std::get<HostTensor>(reference).shape == ours.shape;
  return sketched->row_norms.size() == static_cast<size_t>(ours.rows()) &&
         sketched->sums.size() == kHashes * buckets_of(ours.values.size());
}

std::string shape_text(const ReferenceTensor& reference) {
  const auto* sketched = std::get_if<TensorSketch>(&reference);
  if (sketched == nullptr) return fmt::format("[{}]", fmt::join(std::get<HostTensor>(reference).shape, ", "));
  return fmt::format("a sketch of {} rows in {} buckets", sketched->row_norms.size(), sketched->sums.size() / kHashes);
}

HostTensors read_host_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  HostTensors tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    tensors[entry.name] = {entry.shape, file.read_floats(entry.name)};
  }
  return tensors;
}

ReferenceTensors read_reference_tensors(const std::filesystem::path& path) {
  const HostTensors stored = read_host_tensors(path);
  ReferenceTensors tensors;
  const auto part = [&](const std::string& name) {
    const auto it = stored.find(name);
    if (it == stored.end()) throw UserError("half of a sketch is missing: '" + name + "'", path.string());
    return it->second.values;
  };
  for (const auto& [key, tensor] : stored) {
    if (key.ends_with(kSums) || key.ends_with(kRowNorms)) {
      const std::string name = key.substr(0, key.rfind('.'));
      tensors[name] = TensorSketch{part(name + kRowNorms), part(name + kSums)};
    } else {
      tensors[key] = tensor;
    }
  }
  return tensors;
}

void write_reference_tensors(const std::filesystem::path& path, const ReferenceTensors& tensors) {
  HostTensors stored;
  for (const auto& [name, tensor] : tensors) {
    if (const auto* sketched = std::get_if<TensorSketch>(&tensor)) {
      const auto rows = static_cast<int64_t>(sketched->row_norms.size());
      const auto buckets = static_cast<int64_t>(sketched->sums.size() / kHashes);
      stored[name + kRowNorms] = {{rows}, sketched->row_norms};
      stored[name + kSums] = {{static_cast<int64_t>(kHashes), buckets}, sketched->sums};
    } else {
      stored[name] = std::get<HostTensor>(tensor);
    }
  }
  std::vector<SafetensorsWriter::Announced> announced;
  for (const auto& [name, tensor] : stored) announced.push_back({name, DType::kF32, tensor.shape});
  SafetensorsWriter writer(path, announced);
  for (const auto& [name, tensor] : stored) writer.write(tensor.values.data(), tensor.values.size() * sizeof(float));
  writer.finish();
}

}  // namespace hone
