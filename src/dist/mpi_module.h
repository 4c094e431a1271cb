// The interface of the MPI module, a shared library that the program loads when CPU ranks train together: a single
// process does not need MPI. It is plain C, since exceptions and standard library types must not cross it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hone {

/// Changes with HoneMpiApi: a module with another version is refused.
inline constexpr int64_t kMpiApiVersion = 1;

/// The text of a call's error, truncated to fit.
struct HoneMpiError {
  char text[512];
};

/// Functions return 0, or -1 and an error. One thread at a time may call them.
struct HoneMpiApi {
  int64_t version;
  int (*start)(int* rank, int* size, HoneMpiError* error);
  /// Messages between two ranks arrive in order. Memory must stay valid until test() reports completion.
  int (*send)(int to, const void* data, size_t bytes, HoneMpiError* error);
  int (*receive)(int from, void* data, size_t bytes, HoneMpiError* error);
  /// Sets *done to 1 if all started messages have completed, else to 0.
  int (*test)(int* done, HoneMpiError* error);
  /// Called by the thread that called start, when no rank has messages in flight.
  void (*finish)();
};

/// The one function that the module exports.
using HoneMpiEntry = const HoneMpiApi* (*)();
inline constexpr const char* kMpiEntryName = "hone_mpi_api";

}  // namespace hone
