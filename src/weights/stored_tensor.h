// StoredTensor: the numbers of one weight as a checkpoint holds them, plain or quantised with their scales.
//
// Block FP8 (DeepSeek-V3): NAME [.., N, K] float8_e4m3fn and NAME_scale_inv [.., ceil(N / rows), ceil(K / columns)]
// floating point, blocks from the first row and column on:
//   w[n, k] = code[n, k] · scale[n / rows, k / columns]
// MXFP4 (OCP Microscaling Formats 1.0, as gpt-oss holds its experts): NAME_blocks u8 [.., out, in / 32, 16] and
// NAME_scales u8 [.., out, in / 32]:
//   w[o, 32 g + 2 i] = e2m1(blocks[o, g, i] & 15) · 2^(scales[o, g] - 127), the next from the upper half; scale 255:
//   NaN
// FP8 of compressed-tensors and ModelOpt is the same with NAME_scale: blocks as block FP8, [N, 1] for rows, or one.
// Other formats are classes: weights/coded_matrix.h.
// Products are rounded to float32, and from there to the dtype that is asked for.
//
// On a GPU, too, dequantising is the host's work: its vector instructions make bfloat16 faster than storage delivers
// codes (several GB/s a core), so that kernels would save half of the bytes over PCIe and no time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/packed_weights.h"
#include "weights/checkpoint.h"
#include "weights/coded_matrix.h"

namespace hone {

class StoredTensor {
 public:
  enum class Format { kPlain, kBlockFp8, kMxfp4, kCoded };

  /// What of `tensor` the checkpoint has under any format, with what is missing to complete it; none if it has nothing.
  /// UserError for wrong shapes and dtypes, and for codes that config.json does not say how to read.
  static std::optional<StoredTensor> find(const Checkpoint& checkpoint, const FileTensor& tensor,
                                          std::vector<std::string>& missing);
  /// A tensor that belongs to no parameter, as it is in the file, or with the scales that it needs.
  static StoredTensor carried(const Checkpoint& checkpoint, const std::string& name);

  Format format() const { return format_; }
  /// Its name as a plain tensor.
  const std::string& name() const { return coded_ ? coded_->name() : values_.entry->name; }
  /// The dtype of the numbers: that of the file, bfloat16 if it is quantised.
  DType dtype() const { return format_ == Format::kPlain ? values_.entry->dtype : DType::kBF16; }
  /// The shape of the numbers in the file's order; not of MXFP4, whose codes are in another.
  std::vector<int64_t> shape() const;
  /// The tensors of the checkpoint that it is made of, the one of its name first.
  std::vector<std::string> names() const;
  /// The order in which read() gives the matrices of `tensor`, as which it was found: MXFP4 is never transposed.
  MatrixOrder order(const FileTensor& tensor) const;
  /// Bytes that `count` elements take in the file, their scales not counted.
  int64_t bytes_of(int64_t count) const;

  /// Elements [first, first + count), in the file's order, as float32 or bfloat16 in host memory. For MXFP4 both are
  /// multiples of 32, and the order is that of [.., out, in]. UserError with the tensor and the file for a number that
  /// is not finite, but for a carried tensor. Thread-safe.
  void read(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const;

  /// The packed format for these weights: the values are the same in it, or as near as its blocks allow. Null if they
  /// are not quantised, or none is like theirs.
  const PackedFormat* packed_format() const;
  /// Whether its matrices are in the file as a packed format has them: block FP8 in blocks of 128 x 128, and those
  /// of CodedMatrix::has_chunks().
  bool has_chunks(const PackedLayout& layout) const;
  /// The chunk of matrix `matrix`, without loss. Thread-safe.
  void read_chunk(const PackedLayout& layout, int64_t matrix, std::byte* chunk) const;
  /// Asks the system to read the numbers of these elements beforehand. Thread-safe.
  void prefetch(int64_t first, int64_t count) const;

 private:
  void read_values(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const;
  void read_plain(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const;
  void read_block_fp8(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const;
  void read_mxfp4(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const;
  static StoredTensor block_fp8(const Checkpoint& checkpoint, const std::string& name,
                                std::vector<std::string>& missing);
  static StoredTensor mxfp4(const Checkpoint& checkpoint, const FileTensor& tensor, std::vector<std::string>& missing);
  static StoredTensor coded(std::shared_ptr<const CodedMatrix> matrix);
  void expect_matrix(const std::vector<int64_t>& expected) const;

  /// FP8 whose scales are those of rows, or one for a matrix and so for each of its rows.
  bool has_scales_of_rows() const { return quantization_.block_columns == kWholeMatrix; }

  [[noreturn]] void refuse_number(int64_t element, float number) const;

  Format format_ = Format::kPlain;
  bool carried_ = false;
  Checkpoint::Tensor values_, scales_;
  Quantization quantization_;
  std::shared_ptr<const CodedMatrix> coded_;
  std::shared_ptr<const GrownRows> grown_;  ///< the grown rows of kPlain
};

}  // namespace hone
