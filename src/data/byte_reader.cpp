#include "data/byte_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace hone {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

ByteReader::ByteReader(const std::string& path, FileSource source)
    : compressed_(without_compression(path) != path), in_(UnpackedFile::open(path, source)) {
  fill();
  if (buffer_.starts_with("\xEF\xBB\xBF")) position_ = 3;
  if (buffer_.starts_with("\xFF\xFE") || buffer_.starts_with("\xFE\xFF")) {
    throw UserError("the file is UTF-16", path, "convert it to UTF-8");
  }
}

bool ByteReader::fill() {
  buffer_.resize(kBufferBytes);
  buffer_.resize(in_->read(buffer_.data(), kBufferBytes));
  position_ = 0;
  return !buffer_.empty();
}

int64_t ByteReader::bytes_read() const {
  return in_->bytes_read() - (compressed_ ? 0 : static_cast<int64_t>(buffer_.size() - position_));
}

int ByteReader::get() {
  const int byte = peek();
  if (byte < 0) return byte;
  ++position_;
  if (byte == '\n') ++line_;
  return byte;
}

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
