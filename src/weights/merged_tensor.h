// One tensor of a model with its adapter merged: made from the base's files some rows at a time, and checked.
//
//   W' = W + scale · B A      W and W' as the files have them, the sum in float32, rounded once to the file's dtype
//
// after the adapter has finished its rows (AttachedAdapter::merge_row), where it does.
// Rows are those of the base's file: outputs of a linear weight, or inputs where files hold weights transposed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "params/adapter.h"
#include "weights/shard_writer.h"
#include "weights/stored_tensor.h"

namespace hone {

/// In the product's check, one row of every so many is formed again.
inline constexpr int64_t kRowsPerSample = 20;

/// The row of rows [20 group, 20 group + 20) of a tensor that is checked, the last group perhaps smaller. It depends on
/// the tensor's name and on nothing else.
int64_t sampled_row(const std::string& name, int64_t group, int64_t rows);
/// How many rows of a tensor are checked: a twentieth, rounded up.
inline int64_t sampled_rows(int64_t rows) { return (rows + kRowsPerSample - 1) / kRowsPerSample; }

/// What a check of rows found. Norms are over the sampled rows.
struct RowCheck {
  int64_t rows = 0;     ///< that were formed again
  double change = 0;    ///< ‖scale · B A‖²
  double rounding = 0;  ///< ‖W' as written − (W + scale · B A)‖²
};

/// Memory of one thread.
struct MergeScratch {
  ReadScratch read;
  std::vector<std::byte> narrow;
  std::vector<float> floats;
  std::vector<std::vector<float>> factors;
  std::vector<double> exact, magnitude;
  std::vector<std::vector<float>> largest;
};

/// Parameters and files outlive it. Its functions are safe to call from several threads.
class MergedTensor {
 public:
  /// Of a slice of a parameter: with its adapters, or with its own values where the adapter holds the weight whole
  /// (float32, in host memory), or else as in the base.
  MergedTensor(SavedSlice slice, const Checkpoint& base);
  explicit MergedTensor(CarriedTensor carried);

  enum class Source {
    kCopied,     ///< the bytes of the base's file
    kConverted,  ///< to another dtype, or dequantised
    kMerged,     ///< W + scale · B A, finished as the adapter says
    kReplaced,   ///< the adapter's own values of a weight that it holds whole
  };

  const SafetensorsWriter::Announced& announced() const { return announced_; }
  const std::string& name() const { return announced_.name; }
  Source source() const { return source_; }
  /// The tensor is [rows, columns]; that is an order of elements in the base's file, and a piece of whole rows is a
  /// run of bytes of the written one.
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  /// Rows that are made at once are a multiple of these: those of a matrix which is transposed on its way.
  int64_t rows_together() const { return turned_ ? matrix_rows_ : 1; }
  int64_t row_bytes() const { return columns_ * static_cast<int64_t>(size_of(announced_.dtype)); }

  /// Asks the system to read what make() will.
  void prefetch(int64_t first_row, int64_t rows) const;
  /// The bytes of rows [first_row, first_row + rows) of the written file. Error(kCheckFailed) if a number of a merged
  /// or replaced tensor is not finite.
  void make(MergeScratch& scratch, int64_t first_row, int64_t rows, std::byte* written) const;
  /// Forms the sum (and rows as the adapter finishes them) again for the sampled rows of these, in float64 and from the
  /// base's files, and compares each number with the bytes that were written: it must be one that the file's dtype
  /// rounds the product to, give or take the error of the sum in float32, (2 r + 6) · 2^-24 · (|W| + Σ |scale b a|).
  /// Error(kCheckFailed) if one is not. Nothing for tensors that are not merged.
  RowCheck check(MergeScratch& scratch, int64_t first_row, int64_t rows, const std::byte* written) const;

 private:
  /// The factors of an adapter of the parameter.
  struct Term {
    const float *a = nullptr, *b = nullptr;  // [experts, r, in], [experts, out_count, r]
    int64_t r = 0, out_begin = 0, out_count = 0;
    float scaling = 0;
  };
  /// Where a matrix of the tensor stands in the parameter.
  struct Place {
    int64_t expert = 0, out_begin = 0;
  };
  /// One term of a matrix as a product [rows, r] x [r, columns] in the order of the base's file.
  struct Product {
    MatrixView left, right;
    int64_t r = 0;
    float scaling = 0;
  };

  Place place_of(int64_t matrix) const;
  /// The output of the parameter's expert that is output `file_output` of a matrix in the file.
  int64_t output(const Place& place, int64_t file_output) const;
  std::vector<Product> products(MergeScratch& scratch, int64_t matrix, int64_t begin, int64_t end) const;
  void read_floats(MergeScratch& scratch, int64_t first_row, int64_t rows, float* floats) const;
  void make_blocks(MergeScratch& scratch, int64_t first_row, int64_t rows, std::byte* written) const;
  void expect_finite(const std::byte* written, int64_t count) const;
  void measure_rows(MergeScratch& scratch, int64_t matrix) const;
  void expect_row(MergeScratch& scratch, int64_t row, const float* base) const;

  SafetensorsWriter::Announced announced_;
  const Parameter* parameter_ = nullptr;
  FileTensor slice_;
  std::optional<StoredTensor> stored_;
  Source source_ = Source::kCopied;
  int64_t rows_ = 0, columns_ = 1;
  int64_t matrix_rows_ = 1;
  MatrixOrder order_{FileOrder::kSame, Shape{1}};
  bool rows_are_outputs_ = true;
  bool turned_ = false;  // the base has [out, in], the written file [in, out]: MXFP4
  std::vector<Term> terms_;
  const AttachedAdapter* finishing_ = nullptr;  // makes rows of the merged weight out of W + scale · B A
};

}  // namespace hone
