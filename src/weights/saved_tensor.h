// A tensor as torch.save writes it: a zip archive, not compressed, of a pickle that says dtype, sizes and strides, and
// of one file with the elements. Nothing of it is executed. Format: PyTorch's torch/serialization.py and
// caffe2/serialize; the zip format is PKWARE's APPNOTE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/file_bytes.h"

namespace hone {

/// Where the elements of one saved tensor stand.
struct SavedTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape, strides;  ///< strides in elements
  uint64_t begin = 0;                   ///< in the file, of the first element

  int64_t numel() const;
  bool contiguous() const;
};

/// The tensor in the archive of bytes [offset, offset + length) of a file, which may hold many archives. UserError
/// naming the file: a broken or compressed archive, another object than one tensor, a dtype that is not read, elements
/// outside of the archive.
SavedTensor find_saved_tensor(const FileBytes& file, uint64_t offset, uint64_t length);

/// Its elements in row-major order.
std::vector<std::byte> read_saved_tensor(const FileBytes& file, const SavedTensor& tensor);

}  // namespace hone
