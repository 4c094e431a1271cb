// The "decoder" of tokenizer.json: token strings to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/json_cursor.h"

namespace hone {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Rewrites token strings in place; some types join them. The text is their concatenation.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

/// Reads ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequence; any other type is a UserError that
/// contains its name.
std::unique_ptr<TokenDecoder> make_decoder(const JsonCursor& json);

}  // namespace hone
