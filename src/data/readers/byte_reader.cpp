#include "data/readers/byte_reader.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"

namespace hone {
namespace {

constexpr size_t kInputBytes = size_t{1} << 17;

class PlainFile : public UnpackedFile {
 public:
  PlainFile(const std::string& path, FileSource source) : in_(path, source) {}

  size_t read(char* bytes, size_t size) override {
    const size_t got = in_.read_next(bytes, size);
    read_ += static_cast<int64_t>(got);
    if (!in_.regular() && read_ > static_cast<int64_t>(kMostTypedBytes)) {
      throw UserError(fmt::format("a pipe has more than {} bytes", kMostTypedBytes), in_.path().string(),
                      "write them to a file");
    }
    return got;
  }
  int64_t bytes_read() const override { return read_; }

 private:
  OpenFile in_;
  int64_t read_ = 0;
};

[[noreturn]] void refuse_damaged(const std::string& path, const char* format, const std::string& reason) {
  throw UserError(fmt::format("the {} data are damaged: {}", format, reason), path, "copy or download the file again");
}

[[noreturn]] void refuse_cut_off(const std::string& path, const char* format) {
  throw UserError(fmt::format("the {} data end in the middle", format), path,
                  "the file is truncated: copy or download it again");
}

class GzipFile : public UnpackedFile {
 public:
  GzipFile(const std::string& path, FileSource source) : path_(path), file_(path, source), input_(kInputBytes) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK)
      throw UserError("there is not enough memory to decompress the file", path);
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  size_t read(char* bytes, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(bytes);
    stream_.avail_out = static_cast<uInt>(size);
    // Output may remain without further input.
    while (stream_.avail_out == size) {
      if (!in_member_) skip_padding();
      if (in_member_ || stream_.avail_in > 0) unpack();
      if (stream_.avail_out != size) break;
      if (stream_.avail_in > 0 || refill()) continue;
      if (in_member_) refuse_cut_off(path_, kFormat);
      break;
    }
    return size - stream_.avail_out;
  }
  int64_t bytes_read() const override { return file_.bytes_read(); }

 private:
  static constexpr const char* kFormat = "gzip";

  /// Zero bytes may follow a member, as block devices and tapes pad files.
  void skip_padding() {
    for (; stream_.avail_in > 0 && *stream_.next_in == 0; ++stream_.next_in) --stream_.avail_in;
  }

  void unpack() {
    if (!in_member_) inflateReset(&stream_);
    in_member_ = true;
    const int state = inflate(&stream_, Z_NO_FLUSH);
    if (state == Z_STREAM_END) {
      in_member_ = false;
    } else if (state != Z_OK && state != Z_BUF_ERROR) {
      refuse_damaged(path_, kFormat, stream_.msg ? stream_.msg : "decompression fails");
    }
  }

  bool refill() {
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(file_.read(input_.data(), input_.size()));
    return stream_.avail_in > 0;
  }

  std::string path_;
  PlainFile file_;
  std::vector<char> input_;
  z_stream stream_ = {};
  bool in_member_ = true;  // an empty file is not gzip
};

class ZstdFile : public UnpackedFile {
 public:
  ZstdFile(const std::string& path, FileSource source)
      : path_(path), file_(path, source), input_(ZSTD_DStreamInSize()), stream_(ZSTD_createDStream()) {
    if (!stream_) throw UserError("there is not enough memory to decompress the file", path);
  }

  size_t read(char* bytes, size_t size) override {
    ZSTD_outBuffer out{bytes, size, 0};
    // Output may remain without further input.
    while (out.pos == 0) {
      if (in_frame_ || in_.pos < in_.size) {
        const size_t state = ZSTD_decompressStream(stream_.get(), &out, &in_);
        if (ZSTD_isError(state)) refuse_damaged(path_, kFormat, ZSTD_getErrorName(state));
        in_frame_ = state != 0;
      }
      if (out.pos > 0 || in_.pos < in_.size || refill()) continue;
      if (in_frame_) refuse_cut_off(path_, kFormat);
      break;
    }
    return out.pos;
  }
  int64_t bytes_read() const override { return file_.bytes_read(); }

 private:
  static constexpr const char* kFormat = "Zstandard";

  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };

  bool refill() {
    in_ = {input_.data(), file_.read(input_.data(), input_.size()), 0};
    return in_.size > 0;
  }

  std::string path_;
  PlainFile file_;
  std::vector<char> input_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  bool in_frame_ = true;  // an empty file is not Zstandard
};

}  // namespace

std::string_view without_compression(std::string_view path) {
  for (const std::string_view extension : {".gz", ".zst"}) {
    if (path.ends_with(extension)) return path.substr(0, path.size() - extension.size());
  }
  return path;
}

std::unique_ptr<UnpackedFile> UnpackedFile::open(const std::string& path, FileSource source) {
  if (path.ends_with(".gz")) return std::make_unique<GzipFile>(path, source);
  if (path.ends_with(".zst")) return std::make_unique<ZstdFile>(path, source);
  return std::make_unique<PlainFile>(path, source);
}

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
                      "split it into several files");
    }
    row.text.push_back(static_cast<char>(in_.get()));
  }
  return std::any_of(row.text.begin(), row.text.end(), [](unsigned char byte) { return !is_blank(byte); });
}

}  // namespace hone
