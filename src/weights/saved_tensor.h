// Reads tensors written by torch.save: an uncompressed zip archive with a pickle of dtypes, sizes and strides, and
// files with the elements. Executes nothing. Format: PyTorch's torch/serialization.py and caffe2/serialize; the zip
// format is PKWARE's APPNOTE.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/files/file_bytes.h"

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

/// Whether the file begins as such an archive does. Before PyTorch 1.6, torch.save wrote others.
bool is_saved_archive(const FileBytes& file);

/// The tensors of a dictionary of names and tensors (pytorch_model.bin, adapter_model.bin), in its order. UserError as
/// above, and for a name that is there twice.
std::vector<std::pair<std::string, SavedTensor>> find_saved_tensors(const FileBytes& file);

/// Reads its elements in row-major order.
std::vector<std::byte> read_saved_tensor(const FileBytes& file, const SavedTensor& tensor);
/// Elements [first, first + count) of these as float32.
void read_saved_floats(const FileBytes& file, const SavedTensor& tensor, int64_t first, float* destination,
                       int64_t count);

}  // namespace hone
