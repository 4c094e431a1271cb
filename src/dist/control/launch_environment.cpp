#include "dist/control/launch_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "core/base/error.h"
#include "dist/control/socket.h"

namespace hone {

namespace {

constexpr int kDefaultPort = 29500;  // as torchrun's
constexpr int kPortsTried = 8;

class Variables {
 public:
  explicit Variables(const std::function<const char*(const char*)>& read) : read_(read) {}

  std::string text(const char* name) const {
    const char* value = read_(name);
    return value ? value : "";
  }
  bool has(const char* name) const { return !text(name).empty(); }

  std::optional<int> number(const char* name) const { return number(name, text(name)); }
  /// The first number of a list such as SLURM's "2(x3),1".
  std::optional<int> first_number(const char* name) const {
    const std::string value = text(name);
    return number(name, value.substr(0, value.find_first_of("(,")));
  }

 private:
  static std::optional<int> number(const char* name, const std::string& value) {
    if (value.empty()) return std::nullopt;
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc{} || end != value.data() + value.size() || result < 0) {
      throw UserError(fmt::format("{}={} is not a number from 0", name, value), name,
                      "launchers set it; unset it to train with one process");
    }
    return result;
  }

  const std::function<const char*(const char*)>& read_;
};

/// The names of a launcher's variables.
struct Names {
  const char *launcher, *rank, *size, *local_rank, *local_size;
};
constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kSlurm = {"SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                          "SLURM_STEP_TASKS_PER_NODE"};
constexpr Names kPmi = {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

/// Rank and size from the variables in `names`; nullopt if neither is set.
std::optional<LaunchEnvironment> ranks_of(const Variables& variables, const Names& names) {
  const std::optional<int> rank = variables.number(names.rank), size = variables.number(names.size);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size) {
    throw UserError(
        fmt::format("{} is set, but {} is not", rank ? names.rank : names.size, rank ? names.size : names.rank),
        names.launcher, "launchers set both; unset it to train with one process");
  }
  if (*size < 1 || *rank >= *size) {
    throw UserError(
        fmt::format("{}={} and {}={} are impossible: ranks count from 0", names.rank, *rank, names.size, *size),
        names.launcher, "set them as the launcher would, or unset both");
  }
  LaunchEnvironment environment;
  environment.launcher = names.launcher;
  environment.rank = *rank;
  environment.world_size = *size;
  environment.local_rank = variables.number(names.local_rank).value_or(*rank);
  const std::optional<int> local_size = variables.first_number(names.local_size);
  environment.local_size = std::max(1, local_size.value_or(*size));
  environment.one_host = local_size == *size;
  return environment;
}

/// The rank in a SLURM step. A batch script has the variables of a first task, but is not in a step.
std::optional<LaunchEnvironment> slurm_ranks(const Variables& variables) {
  return variables.has(kSlurm.size) ? ranks_of(variables, kSlurm) : std::nullopt;
}

/// The rank that MPICH's or Intel MPI's mpirun has set. Under SLURM it starts one process per host with srun, whose
/// SLURM variables its ranks inherit; srun's own PMI sets no MPI_LOCALRANKID.
std::optional<LaunchEnvironment> hydra_ranks(const Variables& variables) {
  return variables.has(kPmi.local_rank) ? ranks_of(variables, kPmi) : std::nullopt;
}

std::optional<LaunchEnvironment> find_ranks(const Variables& variables) {
  auto torchrun = ranks_of(variables, kTorchrun);
  const auto mpi = ranks_of(variables, kOpenMpi);
  if (torchrun && mpi && (torchrun->rank != mpi->rank || torchrun->world_size != mpi->world_size)) {
    throw UserError(fmt::format("RANK and WORLD_SIZE say rank {} of {}, Open MPI says rank {} of {}", torchrun->rank,
                                torchrun->world_size, mpi->rank, mpi->world_size),
                    "environment", "unset RANK and WORLD_SIZE, or start the ranks without mpirun");
  }
  if (torchrun) {
    if (mpi && !variables.has(kTorchrun.local_size)) {
      torchrun->local_size = mpi->local_size;
      torchrun->one_host = mpi->one_host;
    }
    if (!variables.has("TORCHELASTIC_RUN_ID")) torchrun->launcher = "hand";
    return torchrun;
  }
  if (mpi) return mpi;
  if (const auto hydra = hydra_ranks(variables)) return hydra;
  if (const auto slurm = slurm_ranks(variables)) return slurm;
  return ranks_of(variables, kPmi);
}

std::string host_of_rank_0(const Variables& variables, const LaunchEnvironment& environment) {
  const std::string stated = variables.text("MASTER_ADDR");
  if (!stated.empty() && (is_loopback(stated) || !environment.one_host)) return stated;
  if (environment.one_host) return "127.0.0.1";
  // A job's list is in the order in which mpirun fills its hosts. The steps in which mpirun starts its daemons leave
  // out hosts, so their lists are not read.
  const std::vector<const char*> lists =
      environment.launcher == kSlurm.launcher
          ? std::vector{"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}
      : environment.launcher == kOpenMpi.launcher || environment.launcher == kPmi.launcher
          ? std::vector{"SLURM_JOB_NODELIST"}
          : std::vector<const char*>();
  for (const char* name : lists) {
    if (variables.has(name)) return first_slurm_host(variables.text(name));
  }
  throw UserError(
      "the address of rank 0 is not known", "MASTER_ADDR",
      environment.launcher == kOpenMpi.launcher ? "mpirun -x MASTER_ADDR=<the host of rank 0> …"
      : environment.launcher == kPmi.launcher
          ? "mpirun -genv MASTER_ADDR <the host of rank 0> …"
          : "set MASTER_ADDR to the host of rank 0, the same on all ranks (127.0.0.1 if all are on one host)");
}

std::vector<int> ports_of(const Variables& variables, const LaunchEnvironment& environment) {
  int first = kDefaultPort;
  if (const std::optional<int> stated = variables.number("MASTER_PORT")) {
    first = *stated;
    // torchrun itself uses MASTER_PORT.
    if (variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++first;
  } else if (!environment.run.empty()) {
    // A port from the job's name: jobs on one host rarely get the same one.
    uint32_t sum = 0;
    for (const char c : environment.run) sum = sum * 31 + static_cast<unsigned char>(c);
    first += static_cast<int>(sum % 1000) * kPortsTried;
  }
  if (first < 1 || first > 65535) {
    throw UserError(fmt::format("{} is not a port", first), "MASTER_PORT", "use one from 1024 to 65000");
  }
  std::vector<int> ports;
  for (int port = first; port < first + kPortsTried && port <= 65535; ++port) ports.push_back(port);
  return ports;
}

std::string run_of(const Variables& variables, const LaunchEnvironment& environment) {
  if (environment.launcher == kSlurm.launcher) {
    return fmt::format("{}.{}", variables.text("SLURM_JOB_ID"), variables.text("SLURM_STEP_ID"));
  }
  if (environment.launcher == kOpenMpi.launcher) {  // version 4, then 5
    return variables.text(variables.has("OMPI_MCA_ess_base_jobid") ? "OMPI_MCA_ess_base_jobid" : "PMIX_NAMESPACE");
  }
  return variables.text("TORCHELASTIC_RUN_ID");
}

}  // namespace

std::string LaunchEnvironment::describe() const {
  if (world_size == 1) return "one process";
  return fmt::format("rank {} of {} (local rank {}), started by {}; rank 0 at {}:{}", rank, world_size, local_rank,
                     launcher, host, ports.front());
}

std::string first_slurm_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of(",-]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end == std::string::npos ? end : end - bracket - 1);
}

LaunchEnvironment launch_environment(const std::function<const char*(const char*)>& variable) {
  const Variables variables(variable);
  std::optional<LaunchEnvironment> environment = find_ranks(variables);
  if (!environment) return {};
  if (environment->world_size == 1) return *environment;
  environment->run = run_of(variables, *environment);
  environment->host = host_of_rank_0(variables, *environment);
  environment->one_host |= is_loopback(environment->host);
  environment->ports = ports_of(variables, *environment);
  return *environment;
}

LaunchEnvironment launch_environment() {
  return launch_environment([](const char* name) { return std::getenv(name); });
}

}  // namespace hone
