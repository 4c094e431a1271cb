#include "app/launched_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "app/output.h"
#include "core/base/error.h"
#include "dist/transport/rendezvous.h"
#include "train/run/stop_signal.h"

namespace hone {

LaunchedRanks::LaunchedRanks(const OutputDir& output_dir) : environment_(launch_environment()) {
  if (size() == 1) return;
  const SecretPlaces secrets =
      secret_places(environment_, [&] { return output_dir ? output_dir(size()) : std::string(); });
  const StopSignal signal;
  control_ = rendezvous(environment_, secrets, {},
                        {.notice = [](const std::string& text) { print_error(text + "\n"); },
                         .check =
                             [&] {
                               if (!signal.requested()) return;
                               throw Error(ExitCode::kResumable,
                                           fmt::format("stopped by {} before all ranks had come", signal.name()), "",
                                           "start them again");
                             }});
}

std::string LaunchedRanks::describe() const {
  std::string text = environment_.describe();
  if (!control_) return text;
  for (int rank = 0; rank < size(); ++rank) text += (rank == 0 ? "; " : ", ") + control_->name_of(rank);
  return text;
}

void LaunchedRanks::set_timeout(double seconds) {
  if (control_) control_->set_hang(seconds);
}

TrainerRanks LaunchedRanks::for_trainer() {
  if (size() == 1) return {};
  return {.rank = environment_.rank,
          .size = environment_.world_size,
          .local_rank = environment_.local_rank,
          .local_size = environment_.local_size,
          .cores_shared_by = control_->ranks_on_own_cores(),
          .ranks_of_host = control_->ranks_of_host(),
          .connect = [this](Stream& stream) { return connect_ranks(std::move(control_), stream); }};
}

int LaunchedRanks::run(const std::function<int()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    if (control_) control_->fail(reason_of(error));
    throw;
  }
}

bool is_launched() { return launch_environment().world_size > 1; }

TrainerRanks launched_ranks() {
  const auto launched = std::make_shared<LaunchedRanks>();
  TrainerRanks ranks = launched->for_trainer();
  if (ranks.connect) {
    ranks.connect = [launched, connect = ranks.connect](Stream& stream) { return connect(stream); };
  }
  return ranks;
}

Terminal terminal_of(const TrainerRanks& ranks) {
  if (ranks.rank == 0) return Terminal::of(STDOUT_FILENO);
  static const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  return Terminal{.fd = nowhere, .seen = false};
}

std::string rank_prefix() {
  try {
    const LaunchEnvironment environment = launch_environment();
    return environment.world_size > 1 ? fmt::format("rank {}: ", environment.rank) : "";
  } catch (const Error&) {  // the caller prints this error
    return "";
  }
}

}  // namespace hone
