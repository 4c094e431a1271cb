#include "data/byte_reader.h"

#include <fmt/format.h>

#include "core/error.h"

namespace hone {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

ByteReader::ByteReader(const std::string& path) : path_(path), in_(path, std::ios::binary) {
  if (!in_) throw UserError("cannot open the file", path, "check that it exists and that you may read it");
  fill();
  if (buffer_.starts_with("\xEF\xBB\xBF")) position_ = 3;
  if (buffer_.starts_with("\xFF\xFE") || buffer_.starts_with("\xFE\xFF")) {
    throw UserError("the file is UTF-16", path, "convert it to UTF-8");
  }
}

bool ByteReader::fill() {
  buffer_.resize(kBufferBytes);
  in_.read(buffer_.data(), static_cast<std::streamsize>(kBufferBytes));
  buffer_.resize(static_cast<size_t>(in_.gcount()));
  if (in_.bad()) throw UserError("cannot read the file", fmt::format("{}:{}", path_, line_));
  loaded_ += in_.gcount();
  position_ = 0;
  return !buffer_.empty();
}

int ByteReader::get() {
  const int byte = peek();
  if (byte < 0) return byte;
  ++position_;
  if (byte == '\n') ++line_;
  return byte;
}

}  // namespace hone
