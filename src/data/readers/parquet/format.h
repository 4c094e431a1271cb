// Names and numbers of the Parquet format, as its thrift definition has them.
#pragma once

#include <cstdint>

namespace hone::parquet {

enum class Physical : int32_t {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedBytes = 7,
};

enum class Repetition : int32_t { kRequired = 0, kOptional = 1, kRepeated = 2 };

enum class Encoding : int32_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
  kByteStreamSplit = 9,
};

enum class Codec : int32_t {
  kNone = 0,
  kSnappy = 1,
  kGzip = 2,
  kLzo = 3,
  kBrotli = 4,
  kLz4Framed = 5,  ///< with the frames of Hadoop, or without
  kZstd = 6,
  kLz4 = 7,  ///< one block without a frame
};

enum class PageType : int32_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };

/// Types of values as their writer meant them; the numbers are those of the union LogicalType.
enum class Logical : int16_t {
  kNone = 0,
  kString = 1,
  kMap = 2,
  kList = 3,
  kEnum = 4,
  kDecimal = 5,
  kDate = 6,
  kTime = 7,
  kTimestamp = 8,
  kInteger = 10,
  kUnknown = 11,  ///< only nulls
  kJson = 12,
  kBson = 13,
  kUuid = 14,
  kFloat16 = 15,
  kVariant = 16,
  kGeometry = 17,
  kGeography = 18,
  kInterval = 100,  ///< only a converted type
};

/// The unit of times and timestamps.
enum class TimeUnit { kSecond, kMilli, kMicro, kNano };

}  // namespace hone::parquet
