// TokenBlocks as files: written whole, read by mapping them, held against their checksum.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "data/token_block.h"

namespace hone {

/// What a block belongs to.
struct BlockPlace {
  std::string key;        ///< of the cache
  int64_t index = 0;      ///< of the block in its data set
  int64_t first_row = 0;  ///< of its data set
};

/// Writes `block` durably (core/durable_file.h). Its records, tokens, labels, weights and row lengths follow a header
/// in JSON, each at a multiple of 64 bytes.
void write_block(const std::filesystem::path& path, const TokenBlock& block, const BlockPlace& place);

/// Maps a block, whose bytes are held against their checksum. Throws UserError: not readable, damaged, of another
/// version or another place.
TokenBlock read_block(const std::filesystem::path& path, const BlockPlace& place);

}  // namespace hone
