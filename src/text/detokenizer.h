// The "decoder" of tokenizer.json: from token strings back to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/json_cursor.h"

namespace hone {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Rewrites token strings (in place; some types join them). The text is what is left, concatenated.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

/// ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequence; another type is a UserError naming it.
std::unique_ptr<TokenDecoder> make_decoder(const JsonCursor& json);

}  // namespace hone
