// Decompression of pages.
#pragma once

#include "data/readers/parquet/bytes.h"
#include "data/readers/parquet/format.h"

namespace hone::parquet {

/// Throws ParquetFault for LZO, which no writer of today has, and for unknown numbers.
void check_codec(Codec codec);

/// The most bytes that `size` bytes can become, as the format of the codec limits it.
uint64_t most_decompressed(Codec codec, uint64_t size);

/// Decompresses `in` to exactly `size` bytes at `out`. Throws ParquetFault for damaged data, and for more or fewer
/// bytes.
void decompress(Codec codec, Bytes in, uint8_t* out, size_t size);

}  // namespace hone::parquet
