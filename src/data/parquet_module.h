// What the program asks of its Parquet module: a library beside it that is loaded when the first .parquet file is read,
// so that a program built without the Arrow libraries, or installed without them, is whole but for Parquet.
// Plain C, since exceptions and types of the standard library do not cross.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hone {

/// Changes with HoneParquetApi, so that a module of another build is refused.
inline constexpr int64_t kParquetApiVersion = 1;

/// Where a call says what went wrong; it is cut to fit.
struct HoneParquetError {
  char text[512];
};

struct HoneParquetApi {
  int64_t version;
  /// Opens a file; null and an error if that fails.
  void* (*open)(const char* path, HoneParquetError* error);
  /// The next row as JSON, valid until the next call: 1; at the end 0; -1 and an error.
  int (*next)(void* file, const char** row, size_t* size, HoneParquetError* error);
  /// Rows of the file.
  int64_t (*rows)(void* file);
  void (*close)(void* file);
};

/// The one function that the module exports.
using HoneParquetEntry = const HoneParquetApi* (*)();
inline constexpr const char* kParquetEntryName = "hone_parquet_api";

}  // namespace hone
