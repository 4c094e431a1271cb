#include <optional>
#include <system_error>

#include "report/page/status_server.h"
#include "train/run/run_observer.h"

namespace hone {

namespace {

/// Serves the page of the run (report/page/status_server.h) as long as the run goes on.
class LivePage : public RunObserver {
 public:
  explicit LivePage(const LoadedRun& run) {
    const RunConfig::Report& report = run.config().report;
    try {
      server_.emplace(report.output_dir, report.metrics_host, static_cast<int>(report.status_port));
      run.logger().info("the run's page is at http://{}:{}/", report.metrics_host, report.status_port);
    } catch (const std::system_error& error) {
      run.logger().warning("status_port {}: {}; the run continues without it", report.status_port, error.what());
    }
  }

 private:
  std::optional<StatusServer> server_;
};

}  // namespace

std::unique_ptr<RunObserver> live_page(const LoadedRun& run) {
  const bool wanted = run.context().writes() && run.config().report.status_port > 0;
  return wanted ? std::make_unique<LivePage>(run) : nullptr;
}

}  // namespace hone
