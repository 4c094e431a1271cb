#include "dist/transport.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "core/program.h"
#include "dist/mpi_module.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "hone_mpi.so";

/// Loads the module once; it stays loaded.
const HoneMpiApi& module() {
  const fs::path path = module_path(kModule);
  // RTLD_GLOBAL: MPI loads components later, which look up its symbols globally.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  const auto entry = library ? reinterpret_cast<HoneMpiEntry>(dlsym(library, kMpiEntryName)) : nullptr;
  if (!entry) {
    throw UserError(fmt::format("the MPI module cannot be loaded: {}", dlerror()), path.string(),
                    "install Open MPI's libraries (libopenmpi3), or build again with those of this machine");
  }
  if (entry()->version != kMpiApiVersion) {
    throw UserError("the MPI module belongs to another version of this program", path.string(), "build both again");
  }
  return *entry();
}

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(Control& control) : control_(control), api_(module()) {
    HoneMpiError error{};
    if (api_.start(&rank_, &size_, &error) != 0) {
      throw UserError(fmt::format("MPI does not start: {}", error.text), "MPI",
                      "try mpirun with another program; hone launch -n 2 starts ranks, too");
    }
    if (rank_ != control.rank() || size_ != control.size()) {
      throw UserError(fmt::format("MPI says rank {} of {}, the launcher's variables say rank {} of {}", rank_, size_,
                                  control.rank(), control.size()),
                      "MPI", "start all ranks with one mpirun or srun");
    }
  }
  ~MpiTransport() override {
    // MPI_Finalize waits for all ranks, including lost ones.
    try {
      control_.barrier();
      api_.finish();
    } catch (const Error&) {
    }
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(int to, const std::byte* data, size_t bytes) override {
    HoneMpiError error{};
    check(api_.send(to, data, bytes, &error), error);
  }
  void receive(int from, std::byte* data, size_t bytes) override {
    HoneMpiError error{};
    check(api_.receive(from, data, bytes, &error), error);
  }

  void wait() override {
    PatientWait patient(control_);
    while (true) {
      HoneMpiError error{};
      int done = 0;
      check(api_.test(&done, &error), error);
      if (done) return;
      patient.pause();
    }
  }

 private:
  void check(int result, const HoneMpiError& error) {
    if (result != 0) throw_broken(control_, fmt::format("MPI: {}", error.text));
  }

  Control& control_;
  const HoneMpiApi& api_;
  int rank_ = 0, size_ = 0;
};

}  // namespace

bool mpi_is_built() { return fs::exists(module_path(kModule)); }

std::unique_ptr<Transport> start_mpi(Control& control) { return std::make_unique<MpiTransport>(control); }

}  // namespace hone
