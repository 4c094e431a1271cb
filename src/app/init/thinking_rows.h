// Thoughts in a model's template and in data: what hone init asks before it writes the template's switch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace hone {

struct ThinkingRows {
  std::string switch_name;    ///< of the template (text/thinking.h); "" = it has none
  int64_t rows = 0;           ///< chats that were read; 0 without data
  int64_t with_thoughts = 0;  ///< of them
  std::string problem = {};   ///< why the data were not read to their end
};

/// Looks at the template of the model in `directory` (empty: none there), and if it has a switch at all rows of `data`
/// ("": none). Data that cannot be read are a problem, not an error.
ThinkingRows find_thoughts(const std::filesystem::path& directory, const std::string& data);

}  // namespace hone
