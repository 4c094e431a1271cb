// The MPI module, a shared library of its own: messages between CPU ranks (mpi_module.h).
#include "dist/mpi_module.h"

#include <mpi.h>

#include <cstdio>
#include <limits>
#include <vector>

namespace hone {
namespace {

constexpr int kTag = 0;

std::vector<MPI_Request> requests;  // started and not completed

/// Returns 0 if `code` is success; otherwise -1 and MPI's error text.
int checked(int code, HoneMpiError* error) {
  if (code == MPI_SUCCESS) return 0;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::snprintf(error->text, sizeof error->text, "%s", text);
  return -1;
}

int refuse(const char* text, HoneMpiError* error) {
  std::snprintf(error->text, sizeof error->text, "%s", text);
  return -1;
}

int start(int* rank, int* size, HoneMpiError* error) {
  int level = 0;
  if (checked(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), error) != 0) return -1;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
  return level >= MPI_THREAD_SERIALIZED ? 0 : refuse("this MPI supports only programs with one thread", error);
}

int send(int to, const void* data, size_t bytes, HoneMpiError* error) {
  if (bytes > size_t{std::numeric_limits<int>::max()}) return refuse("the message is too long", error);
  return checked(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, kTag, MPI_COMM_WORLD, &requests.emplace_back()),
                 error);
}

int receive(int from, void* data, size_t bytes, HoneMpiError* error) {
  if (bytes > size_t{std::numeric_limits<int>::max()}) return refuse("the message is too long", error);
  return checked(
      MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, kTag, MPI_COMM_WORLD, &requests.emplace_back()), error);
}

int test(int* done, HoneMpiError* error) {
  if (checked(MPI_Testall(static_cast<int>(requests.size()), requests.data(), done, MPI_STATUSES_IGNORE), error) != 0) {
    return -1;
  }
  if (*done) requests.clear();
  return 0;
}

void finish() { MPI_Finalize(); }

constexpr HoneMpiApi kApi = {kMpiApiVersion, start, send, receive, test, finish};

}  // namespace
}  // namespace hone

extern "C" __attribute__((visibility("default"))) const hone::HoneMpiApi* hone_mpi_api() { return &hone::kApi; }
