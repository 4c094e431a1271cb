// The interface of the Parquet module, a shared library next to the program that is loaded when the first .parquet file
// is read. A program built or installed without the Arrow libraries then lacks only Parquet. The interface is plain C:
// no exceptions or types of the standard library cross it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hone {

/// The version of HoneParquetApi; a module with another version is rejected.
inline constexpr int64_t kParquetApiVersion = 1;

/// The text of an error, truncated to fit.
struct HoneParquetError {
  char text[512];
};

struct HoneParquetApi {
  int64_t version;
  /// Opens a file; returns null and sets `error` on failure.
  void* (*open)(const char* path, HoneParquetError* error);
  /// Reads the next row as JSON, valid until the next call. Returns 1, 0 at the end, or -1 with `error`.
  int (*next)(void* file, const char** row, size_t* size, HoneParquetError* error);
  /// Number of rows of the file.
  int64_t (*rows)(void* file);
  void (*close)(void* file);
};

/// The only function that the module exports.
using HoneParquetEntry = const HoneParquetApi* (*)();
inline constexpr const char* kParquetEntryName = "hone_parquet_api";

}  // namespace hone
