// hone status: serves the page of a run's folder, which updates itself.
#pragma once

#include <string>

namespace hone {

struct StatusOptions {
  std::string folder;  ///< the output_dir of a run
  std::string host = "127.0.0.1";
  int port = 8420;
};

/// Serves until SIGINT or SIGTERM; writes nothing. Returns the exit code. Throws UserError if the folder does not exist
/// or the port is not available.
int run_status(const StatusOptions& options);

}  // namespace hone
