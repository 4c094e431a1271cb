// Reads a tensor written by torch.save: an uncompressed zip archive with a pickle of dtype, sizes and strides, and a
// file with the elements. Executes nothing. Format: PyTorch's torch/serialization.py and caffe2/serialize; the zip
// format is PKWARE's APPNOTE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/file_bytes.h"

namespace hone {

/// Position and layout of a saved tensor's elements.
struct SavedTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape, strides;  ///< strides in elements
  uint64_t begin = 0;                   ///< offset of the first element in the file

  int64_t numel() const;
  bool contiguous() const;
};

/// Finds the tensor in the archive of bytes [offset, offset + length) of a file, which may have many archives.
/// UserError with the file: a broken or compressed archive, an object other than one tensor, an unsupported dtype,
/// elements outside of the archive.
SavedTensor find_saved_tensor(const FileBytes& file, uint64_t offset, uint64_t length);

/// Reads its elements in row-major order.
std::vector<std::byte> read_saved_tensor(const FileBytes& file, const SavedTensor& tensor);

}  // namespace hone
