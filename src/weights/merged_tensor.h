// One tensor of a model with its adapter merged: computed from the base's files some rows at a time, and checked.
//
//   W' = W + scale · B A      W and W' as in the files, the sum in float32, rounded once to the file's dtype
//
// followed by the adapter's own operation on rows (AttachedAdapter::merge_row), if it has one. Rows are those of the
// base's file: outputs of a linear weight, or inputs if files store weights transposed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "params/adapter.h"
#include "weights/rounded_base.h"
#include "weights/shard_writer.h"
#include "weights/stored_tensor.h"

namespace hone {

/// The check recomputes one row in this many.
inline constexpr int64_t kRowsPerSample = 20;

/// The row of rows [20 group, 20 group + 20) of a tensor that is checked; the last group may be smaller. Depends only
/// on the tensor's name.
int64_t sampled_row(const std::string& name, int64_t group, int64_t rows);
/// Number of rows of a tensor that are checked: a twentieth, rounded up.
inline int64_t sampled_rows(int64_t rows) { return (rows + kRowsPerSample - 1) / kRowsPerSample; }

/// Result of checking rows. Norms are over the sampled rows.
struct RowCheck {
  int64_t rows = 0;     ///< number of recomputed rows
  double change = 0;    ///< ‖scale · B A‖²
  double rounding = 0;  ///< ‖W' as written − (W + scale · B A)‖²
};

/// Memory of one thread.
struct RowScratch {
  ReadScratch read;
  std::vector<std::byte> narrow;
  std::vector<float> floats;
  std::vector<std::vector<float>> factors;
  std::vector<double> exact, magnitude;
  std::vector<std::vector<float>> largest;
  RoundedMatrix rounded;
  RoundingError base_error;  ///< the error of the matrices that make() has rounded
};

/// Parameters and files must outlive it. Its functions are thread-safe.
class MergedTensor {
 public:
  /// A slice of a parameter: with its adapters merged, or with its own values if the adapter has the full weight
  /// (float32, in host memory), or else as in the base. Unless `rounding` is null, a weight of the base is rounded by
  /// it first.
  MergedTensor(SavedSlice slice, const Checkpoint& base, const PackedFormat* rounding = nullptr);
  explicit MergedTensor(CarriedTensor carried);

  enum class Source {
    kCopied,     ///< the bytes of the base's file
    kConverted,  ///< converted to another dtype, or dequantised
    kMerged,     ///< W + scale · B A, followed by the adapter's merge_row; W rounded, or not
    kReplaced,   ///< the adapter's values of a weight that it has in full
  };

  const SafetensorsWriter::Announced& announced() const { return announced_; }
  const std::string& name() const { return announced_.name; }
  Source source() const { return source_; }
  /// Whether an adapter changes it, and whether a packed format does.
  bool adapted() const { return !terms_.empty() || finishing_ != nullptr; }
  bool rounds() const { return rounding_ != nullptr; }
  /// The tensor is viewed as [rows, columns] in the element order of the base's file; a piece of complete rows is a
  /// contiguous run of bytes of the written file.
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  /// make() needs multiples of this number of rows: those of a matrix that is transposed on writing, or rounded.
  int64_t rows_together() const { return turned_ || rounds() ? matrix_rows_ : 1; }
  int64_t row_bytes() const { return columns_ * static_cast<int64_t>(size_of(announced_.dtype)); }

  /// Starts reading ahead for make().
  void prefetch(int64_t first_row, int64_t rows) const;
  /// Computes the bytes of rows [first_row, first_row + rows) of the written file. Error(kCheckFailed) if a number of a
  /// merged or replaced tensor is not finite.
  void make(RowScratch& scratch, int64_t first_row, int64_t rows, std::byte* written) const;
  /// Recomputes the sampled ones of these rows in float64 from the base's files, including merge_row, and compares each
  /// number with the written bytes: it must be a number to which the file's dtype may round the product, within the
  /// error of the float32 sum, (2 r + 6) · 2^-24 · (|W| + Σ |scale b a|). Error(kCheckFailed) otherwise. Does nothing
  /// for tensors that are not merged.
  RowCheck check(RowScratch& scratch, int64_t first_row, int64_t rows, const std::byte* written) const;

 private:
  /// Factors of an adapter of the parameter.
  struct Term {
    const float *a = nullptr, *b = nullptr;  // [experts, r, in], [experts, out_count, r]
    int64_t r = 0, out_begin = 0, out_count = 0;
    float scaling = 0;
  };
  /// Position of a matrix of the tensor in the parameter.
  struct Place {
    int64_t expert = 0, out_begin = 0;
  };
  /// A term of a matrix as a product [rows, r] x [r, columns] in the element order of the base's file.
  struct Product {
    MatrixView left, right;
    int64_t r = 0;
    float scaling = 0;
  };

  Place place_of(int64_t matrix) const;
  /// The output index in the parameter's expert of output `file_output` of a matrix in the file.
  int64_t output(const Place& place, int64_t file_output) const;
  std::vector<Product> products(RowScratch& scratch, int64_t matrix, int64_t begin, int64_t end) const;
  /// Rows of one matrix of the base, rounded or not.
  void read_floats(RowScratch& scratch, int64_t first_row, int64_t rows, float* floats) const;
  void round(RowScratch& scratch, int64_t matrix) const;
  void make_blocks(RowScratch& scratch, int64_t first_row, int64_t rows, std::byte* written) const;
  void expect_finite(const std::byte* written, int64_t count) const;
  void measure_rows(RowScratch& scratch, int64_t matrix) const;
  void expect_row(RowScratch& scratch, int64_t row, const float* base) const;

  SafetensorsWriter::Announced announced_;
  const Parameter* parameter_ = nullptr;
  FileTensor slice_;
  std::optional<StoredTensor> stored_;
  Source source_ = Source::kCopied;
  int64_t rows_ = 0, columns_ = 1;
  int64_t matrix_rows_ = 1;
  MatrixOrder order_{FileOrder::kSame, Shape{1}};
  bool rows_are_outputs_ = true;
  bool turned_ = false;  // transposed: the base has [out, in], the written file [in, out] (MXFP4)
  std::vector<Term> terms_;
  const PackedFormat* rounding_ = nullptr;
  const AttachedAdapter* finishing_ = nullptr;  // has a merge_row, applied to rows of W + scale · B A
};

}  // namespace hone
