// Tells the user on standard error what a download does.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "hub/fetch.h"
#include "report/console.h"

namespace hone {

/// "16 files, 61.1 GB (58.0 GB to download; 210 GB are free) of Qwen/Qwen3-30B-A3B at commit 0123456".
std::string plan_line(const FetchPlan& plan);

class FetchConsole {
 public:
  FetchConsole();

  /// Adds lines and a progress bar to a download; on a pipe, a line twice a minute. This must outlive it.
  FetchOptions shown(FetchOptions options);

  /// Says how long it took, if something was downloaded.
  void finish(const std::filesystem::path& snapshot);

  void line(const std::string& text) { console_.line(text); }

 private:
  using Clock = std::chrono::steady_clock;

  void progress(const TransferProgress& at);
  std::string rate_text(const TransferProgress& at, double& seconds_left);

  Console console_;
  std::string name_;
  Clock::time_point begin_{}, last_line_{}, rate_since_{};
  uint64_t rate_from_ = 0;
  double rate_ = 0;  // bytes a second, of the last seconds
  TransferProgress last_;
};

}  // namespace hone
