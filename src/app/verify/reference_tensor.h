// Tensors of a reference case: all values of a tensor or, in a thinned case, a sketch of it.
//
// A sketch determines the distance of another tensor from it. It contains
//   NAME.row_norms   [rows]        the norm of each row of the first dimension (fewer than two dimensions: one row)
//   NAME.sketch      [4, buckets]  count sketches: each of four hash functions gives every element a bucket and a sign,
//                                  and a bucket is the sum of its elements with their signs
// Count sketches are linear, so the sketch of a difference e is the difference of the sketches. The mean over the hash
// functions of ‖sketch(e)‖² has the expectation ‖e‖² and a variance of at most 2 / (4 buckets) ‖e‖⁴, and it is exactly
// ‖e‖² if no two nonzero elements of e share a bucket, as for one wrong element. The distance of the row norms is at
// most ‖e‖. A row is zero if its norm is zero.
// Source: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams" (ICALP 2002); Weinberger, Dasgupta,
// Langford, Smola, Attenberg, "Feature hashing for large scale multitask learning" (ICML 2009), lemma 2.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace hone {

/// A tensor in host memory.
struct HostTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;

  /// The size of the first dimension; 1 if there are fewer than two dimensions.
  int64_t rows() const { return shape.size() > 1 ? shape[0] : 1; }
};

struct TensorSketch {
  std::vector<float> row_norms;
  std::vector<float> sums;  ///< [4, buckets]
};

using HostTensors = std::map<std::string, HostTensor>;
using ReferenceTensor = std::variant<HostTensor, TensorSketch>;
using ReferenceTensors = std::map<std::string, ReferenceTensor>;

TensorSketch sketch(const HostTensor& tensor);
/// A sketch if that is at most half as large as the tensor, else the tensor.
ReferenceTensor thinned(HostTensor tensor);

double norm(const HostTensor& tensor);
double norm(const ReferenceTensor& tensor);
/// ‖ours − reference‖; for a sketch the larger of the estimates from the count sketches and from the row norms. NaN if
/// `ours` contains NaN.
double distance(const HostTensor& ours, const ReferenceTensor& reference);
/// Rows that are all zero in the reference and not in ours.
int64_t nonzero_rows(const HostTensor& ours, const ReferenceTensor& reference);

/// Whether `reference` has the shape of `ours`; for a sketch the number of rows and of buckets.
bool has_shape(const ReferenceTensor& reference, const HostTensor& ours);
/// The shape for messages: "[8, 48, 64]" or "a sketch of 8 rows in 384 buckets".
std::string shape_text(const ReferenceTensor& reference);

/// Every tensor of a safetensors file as float32.
HostTensors read_host_tensors(const std::filesystem::path& path);
/// The same for files with sketches. Throws UserError if a sketch is incomplete.
ReferenceTensors read_reference_tensors(const std::filesystem::path& path);
void write_reference_tensors(const std::filesystem::path& path, const ReferenceTensors& tensors);

}  // namespace hone
