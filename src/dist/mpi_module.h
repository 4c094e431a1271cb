// What the program asks of its MPI module: a library beside it that is loaded when CPU ranks train together, so that a
// program that trains alone neither needs nor loads MPI. Plain C, since exceptions and types of the standard library do
// not cross.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hone {

/// Changes with HoneMpiApi, so that a module of another build is refused.
inline constexpr int64_t kMpiApiVersion = 1;

/// Where a call says what went wrong; it is cut to fit.
struct HoneMpiError {
  char text[512];
};

/// Calls give 0, or -1 and an error. One thread at a time makes them.
struct HoneMpiApi {
  int64_t version;
  int (*start)(int* rank, int* size, HoneMpiError* error);
  /// Messages between two ranks arrive in order; memory must stay until test() says that all is done.
  int (*send)(int to, const void* data, size_t bytes, HoneMpiError* error);
  int (*receive)(int from, void* data, size_t bytes, HoneMpiError* error);
  /// Whether all that was started is done: *done is 1 or 0.
  int (*test)(int* done, HoneMpiError* error);
  /// By the thread that called start, with nothing under way on any rank.
  void (*finish)();
};

/// The one function that the module exports.
using HoneMpiEntry = const HoneMpiApi* (*)();
inline constexpr const char* kMpiEntryName = "hone_mpi_api";

}  // namespace hone
