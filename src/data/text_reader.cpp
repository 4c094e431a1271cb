#include "data/text_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace hone {

bool TextReader::next(RawRow& row) {
  row = {};
  row.file = file_;
  row.line = 1;
  row.syntax = RowSyntax::kText;
  while (in_.peek() >= 0) {
    if (row.text.size() == kMaxRowBytes) {
      throw UserError(fmt::format("the text is longer than {} bytes", kMaxRowBytes), file_,
                      "part it into several files");
    }
    row.text.push_back(static_cast<char>(in_.get()));
  }
  return std::any_of(row.text.begin(), row.text.end(), [](unsigned char byte) { return !is_blank(byte); });
}

}  // namespace hone
