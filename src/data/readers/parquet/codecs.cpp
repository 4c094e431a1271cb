#include "data/readers/parquet/codecs.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <limits>

namespace hone::parquet {

namespace {

[[noreturn]] void refuse_page(const char* format) { fault("the {} data of a page are damaged", format); }

void unpack_snappy(Bytes in, uint8_t* out, size_t size) {
  const auto* bytes = reinterpret_cast<const char*>(in.data());
  size_t claimed = 0;
  if (!snappy::GetUncompressedLength(bytes, in.size(), &claimed) || claimed != size ||
      !snappy::RawUncompress(bytes, in.size(), reinterpret_cast<char*>(out))) {
    refuse_page("Snappy");
  }
}

/// One or more members, with a header of gzip or of zlib.
void unpack_gzip(Bytes in, uint8_t* out, size_t size) {
  struct Stream : z_stream {
    Stream() : z_stream{} {}
    ~Stream() { inflateEnd(this); }
  } stream;
  constexpr int kGzipOrZlib = 32 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) fault("there is not enough memory to decompress a page");
  stream.next_in = const_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out;
  stream.avail_out = static_cast<uInt>(size);
  while (true) {
    const int state = inflate(&stream, Z_FINISH);
    if (state != Z_STREAM_END) refuse_page("gzip");
    if (stream.avail_out == 0) return;
    if (stream.avail_in == 0 || inflateReset(&stream) != Z_OK) refuse_page("gzip");
  }
}

void unpack_brotli(Bytes in, uint8_t* out, size_t size) {
  size_t written = size;
  if (BrotliDecoderDecompress(in.size(), in.data(), &written, out) != BROTLI_DECODER_RESULT_SUCCESS ||
      written != size) {
    refuse_page("Brotli");
  }
}

void unpack_zstd(Bytes in, uint8_t* out, size_t size) {
  const size_t written = ZSTD_decompress(out, size, in.data(), in.size());
  if (ZSTD_isError(written) || written != size) refuse_page("Zstandard");
}

bool unpack_lz4_block(Bytes in, uint8_t* out, size_t size) {
  constexpr size_t kMost = std::numeric_limits<int>::max();
  if (in.size() > kMost || size > kMost) return false;
  const int written = LZ4_decompress_safe(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out),
                                          static_cast<int>(in.size()), static_cast<int>(size));
  return written >= 0 && static_cast<size_t>(written) == size;
}

uint32_t big_endian_word(ByteCursor& in) {
  const Bytes b = in.take(4);
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
}

/// Hadoop's frames: the size of what they hold, their own size, and a block. False for anything else.
bool unpack_lz4_frames(Bytes bytes, uint8_t* out, size_t size) {
  ByteCursor in(bytes);
  size_t done = 0;
  while (in.left() > 0) {
    if (in.left() < 8) return false;
    const uint32_t holds = big_endian_word(in), packed = big_endian_word(in);
    if (packed > in.left() || holds > size - done || !unpack_lz4_block(in.take(packed), out + done, holds))
      return false;
    done += holds;
  }
  return done == size;
}

}  // namespace

void check_codec(Codec codec) {
  if (codec >= Codec::kNone && codec <= Codec::kLz4 && codec != Codec::kLzo) return;
  const std::string name = codec == Codec::kLzo ? "LZO" : fmt::format("the unknown codec {}", static_cast<int>(codec));
  throw ParquetFault("it is compressed with " + name, "write it with Snappy or Zstandard");
}

uint64_t most_decompressed(Codec codec, uint64_t size) {
  constexpr uint64_t kSlack = 1024;
  switch (codec) {
    case Codec::kNone:
      return size;
    case Codec::kSnappy:  // a copy of 64 bytes takes 3
      return 22 * size + kSlack;
    case Codec::kGzip:  // a copy of 258 bytes takes 2 bits
      return 1032 * size + kSlack;
    case Codec::kLz4Framed:
    case Codec::kLz4:  // a byte more for 255 bytes more
      return 255 * size + kSlack;
    default:
      return std::numeric_limits<uint64_t>::max();
  }
}

void decompress(Codec codec, Bytes in, uint8_t* out, size_t size) {
  switch (codec) {
    case Codec::kNone:
      if (in.size() != size) fault("a page has {} bytes, its header says {}", in.size(), size);
      if (size > 0) std::memcpy(out, in.data(), size);
      return;
    case Codec::kSnappy:
      return unpack_snappy(in, out, size);
    case Codec::kGzip:
      return unpack_gzip(in, out, size);
    case Codec::kBrotli:
      return unpack_brotli(in, out, size);
    case Codec::kZstd:
      return unpack_zstd(in, out, size);
    case Codec::kLz4Framed:
      if (!unpack_lz4_frames(in, out, size) && !unpack_lz4_block(in, out, size)) refuse_page("LZ4");
      return;
    case Codec::kLz4:
      if (!unpack_lz4_block(in, out, size)) refuse_page("LZ4");
      return;
    case Codec::kLzo:
      break;
  }
  check_codec(codec);
}

}  // namespace hone::parquet
