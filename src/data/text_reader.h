// Files of plain text: each is one row.
#pragma once

#include <string>

#include "data/byte_reader.h"
#include "data/raw_row.h"

namespace hone {

/// A `.txt` or `.md` file as one row {"text": …}; a file that is empty or only blanks has none.
class TextReader : public RowReader {
 public:
  explicit TextReader(const std::string& file) : file_(file), in_(file) {}

  /// Throws UserError: the file is larger than kMaxRowBytes, not readable.
  bool next(RawRow& row) override;
  int64_t bytes_read() const override { return in_.bytes_read(); }

 private:
  std::string file_;
  ByteReader in_;
};

}  // namespace hone
