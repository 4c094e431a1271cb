// A matrix in the tensors of compressed-tensors (llm-compressor, Kimi-K2's INT4) or of ModelOpt's NVFP4. FP8 of both is
// weights/stored_tensor.h's.
//
// Codes, scales and what belongs to them, for a matrix NAME [N, K] in groups of g columns, G = K / g:
//
// | form      | codes                                      | scales NAME_scale               | w[n, k]                |
// |-----------|--------------------------------------------|---------------------------------|------------------------|
// | words     | NAME_packed i32 [N, ceil(K b / 32)], b = 4 | float [N, G], [N, 1] or one     | (q - 2^(b-1) - z) · s  |
// |           | or 8; the lowest bits of a word first      |                                 |                        |
// | bytes     | NAME i8 [N, K]                             | the same                        | (q - z) · s            |
// | MXFP4     | NAME_packed u8 [N, K / 2], e2m1, the lower | u8 [N, K / 32], e8m0            | e2m1(q) · 2^(s - 127)  |
// |           | half of a byte first                       |                                 |                        |
// | NVFP4     | the same                                   | e4m3 [N, K / 16], and NAME_global_scale f32,  |          |
// |           |                                            | which divides them              | e2m1(q) · (s / global) |
// | ModelOpt  | NAME u8, as NVFP4                          | e4m3 [N, K / 16], NAME_scale_2 f32, a factor  |          |
//
// Words have NAME_shape, N and K as integers. z is 0, or NAME_zero_point: i32 [ceil(N b / 32), G] for words, packed as
// they are but down the rows, with 2^(b-1) added; i8 as the scales for bytes.
// Source: compressed-tensors 0.12 and later, `compressors`; ModelOpt's `export/quant_utils`.
#pragma once

#include <array>
#include <optional>

#include "weights/coded_matrix.h"

namespace hone {

class CompressedMatrix final : public CodedMatrix {
 public:
  /// Whether the checkpoint has codes of NAME, as its config.json calls these formats.
  static bool has_codes_of(const Checkpoint& checkpoint, const std::string& name);
  /// The NAME whose codes a tensor of the checkpoint has; none if it has no such codes.
  static std::optional<std::string> name_of_codes(const Checkpoint& checkpoint, const std::string& tensor);

  /// Finds the tensors of the matrix, and appends the names of absent ones to `missing`. UserError for tensors that
  /// contradict each other, and for columns in another order than the scales (activation order).
  CompressedMatrix(const Checkpoint& checkpoint, const std::string& name, std::vector<std::string>& missing);

  const std::string& name() const override { return name_; }
  const Checkpoint::Tensor& codes() const override { return codes_; }
  const std::vector<int64_t>& shape() const override { return shape_; }
  std::vector<std::string> names() const override;
  int64_t bytes_of(int64_t count) const override { return count * bits_ / 8; }
  void read(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const override;
  /// int4, int4_128, int8 and mxfp4 have the values of words, bytes and MXFP4 with scales of their kind; null for
  /// others.
  const PackedFormat* packed_format() const override { return packed_; }
  bool has_chunks() const override { return packed_ != nullptr; }
  void read_chunk(const PackedLayout& layout, std::byte* chunk) const override;

 private:
  const Checkpoint::Tensor* find(const Checkpoint& checkpoint, const std::string& name,
                                 std::vector<std::string>* missing);
  void find_words(const Checkpoint& checkpoint, std::vector<std::string>& missing);
  void find_zeros(const Checkpoint& checkpoint);
  void find_scales(const Checkpoint& checkpoint, std::vector<std::string>& missing);
  /// Scales of rows [first, first + count) into scratch.scales, [count, groups()].
  void scales_of_rows(ReadScratch& scratch, int64_t first, int64_t count) const;
  const PackedFormat* same_format() const;
  int64_t row_bytes() const { return codes_.entry->shape[1] * static_cast<int64_t>(size_of(codes_.entry->dtype)); }
  int64_t groups() const { return shape_[1] / group_; }
  [[noreturn]] void contradict(const std::string& what) const;

  std::string name_;
  Checkpoint::Tensor codes_, scales_;
  std::vector<std::string> other_names_;
  std::vector<int64_t> shape_;
  int bits_ = 4;
  std::array<float, 256> values_{};  ///< codes' values; the first 2^bits_
  int64_t group_ = 0;                ///< columns that share a scale
  bool one_scale_ = false;           ///< for the whole matrix
  float scale_factor_ = 1.0f;        ///< multiplies every scale
  std::vector<float> zeros_;         ///< zero points [N, G]; empty: none
  const PackedFormat* packed_ = nullptr;
};

}  // namespace hone
