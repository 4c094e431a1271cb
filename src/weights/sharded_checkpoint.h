// Reads a folder of torch.distributed.checkpoint, as FSDP writes it: `.metadata`, a pickle of names, sizes and
// positions, and `__i_j.distcp` files, each with tensors of one rank. Uses no Python and executes nothing. Format:
// PyTorch's torch/distributed/checkpoint/{metadata,filesystem}.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/files/file_bytes.h"

namespace hone {

class ShardedCheckpoint {
 public:
  /// A box of a tensor, and its position in a file.
  struct Chunk {
    std::vector<int64_t> offsets, sizes;
    const FileBytes* file = nullptr;
    uint64_t offset = 0, length = 0;  ///< its archive in the file
  };
  struct Tensor {
    std::string key;  ///< key in the metadata
    std::vector<int64_t> shape;
    DType dtype = DType::kF32;
    std::vector<Chunk> chunks;

    int64_t numel() const;
    std::string shape_text() const;
  };

  /// Whether the folder is such a checkpoint.
  static bool is_one(const std::filesystem::path& directory);
  /// Reads `.metadata`. UserError with file and tensor: a damaged or different pickle, a missing file, chunks that do
  /// not cover their tensor exactly once.
  static ShardedCheckpoint open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  /// Floating-point tensors by name, without the prefixes of wrappers: an outer dictionary {"model": …}, DDP's
  /// `module.`, `_orig_mod.` of torch.compile, `_fsdp_wrapped_module.`, `_checkpoint_wrapped_module.`.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  /// Reads all elements in row-major order, in the tensor's dtype; only this tensor is in memory.
  std::vector<std::byte> read(const Tensor& tensor) const;

 private:
  std::filesystem::path directory_;
  std::map<std::string, FileBytes> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace hone
