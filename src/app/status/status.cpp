#include "app/status/status.h"

#include <fmt/format.h>

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "app/launch/rank_processes.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "report/page/status_server.h"

namespace hone {

int run_status(const StatusOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_directory(options.folder, error)) {
    throw UserError("there is no such folder", options.folder, "name the output_dir of a run");
  }
  CaughtSignals signals;
  try {
    const StatusServer server(options.folder, options.host, options.port);
    print_text(
        fmt::format("{} at http://{}:{}/ until Ctrl-C\n", one_line(options.folder), options.host, server.port()));
    while (true) {
      const int signal = signals.take();
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  } catch (const std::system_error& failed) {
    throw UserError(failed.what(), "--port", "choose another, or 0 for any free one");
  }
}

}  // namespace hone
