// A matrix that bitsandbytes quantised, in the tensors that transformers saves for it.
//
// 4 bits: NAME u8 [ceil(N K / 2), 1], two codes a byte, the upper half first; NAME.quant_map f32 [16]; NAME.absmax f32
// [blocks]; NAME.quant_state.bitsandbytes__nf4 (or __fp4) u8: JSON with blocksize and shape [N, K]. For element i of
// the flattened matrix and block b = i / blocksize:
//   w[i] = quant_map[code[i]] · absmax[b]
// With nested scales NAME.absmax is u8 [blocks], and NAME.nested_absmax f32, NAME.nested_quant_map f32 [256] and, in
// the JSON, nested_blocksize and nested_offset belong to it:
//   absmax[b] = nested_quant_map[absmax code[b]] · nested_absmax[b / nested_blocksize] + nested_offset
// 8 bits: NAME i8 [N, K], and SCB f32 [N], whose name has "SCB" in place of "weight":
//   w[n, k] = code[n, k] · (SCB[n] / 127)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "weights/coded_matrix.h"

namespace hone {

class BitsandbytesMatrix final : public CodedMatrix {
 public:
  /// Whether a tensor of a checkpoint holds codes of such a matrix: unsigned or signed bytes.
  static bool has_codes_of(const SafetensorsEntry& entry);

  /// Finds the tensors of the matrix `codes`, and appends the names of absent ones to `missing`. UserError for tensors
  /// that contradict each other.
  BitsandbytesMatrix(const Checkpoint& checkpoint, const Checkpoint::Tensor& codes, std::vector<std::string>& missing);

  const std::string& name() const override { return codes_.entry->name; }
  const Checkpoint::Tensor& codes() const override { return codes_; }
  const std::vector<int64_t>& shape() const override { return shape_; }
  std::vector<std::string> names() const override;
  int64_t bytes_of(int64_t count) const override { return four_bits_ ? (count + 1) / 2 : count; }
  void read(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const override;
  /// Its values are the same, bit for bit for nf4; null if no format has them.
  const PackedFormat* packed_format() const override;
  bool has_chunks() const override { return packed_format() != nullptr; }
  void read_chunk(const PackedLayout& layout, std::byte* chunk) const override;

 private:
  /// Tables and sizes of 4 bits.
  struct FourBits {
    std::array<float, 16> map{};
    std::array<float, 256> nested_map{};
    int64_t block = 0, nested_block = 0;
    float nested_offset = 0.0f;
  };

  void find_four_bits(const Checkpoint& checkpoint, std::vector<std::string>& missing);
  void find_eight_bits(const Checkpoint& checkpoint, std::vector<std::string>& missing);
  void read_state(const Checkpoint::Tensor& state, const std::string& type, bool nested);
  const Checkpoint::Tensor* find(const Checkpoint& checkpoint, const std::string& name,
                                 std::vector<std::string>& missing);
  void scales_of_blocks(ReadScratch& scratch, int64_t first, int64_t count) const;
  int64_t blocks() const;
  [[noreturn]] void contradict(const std::string& what) const;

  Checkpoint::Tensor codes_, scales_, nested_scales_;
  std::vector<std::string> other_names_;
  std::vector<int64_t> shape_;
  bool four_bits_ = false;
  FourBits state_;
};

}  // namespace hone
