#include "hub/fetch_console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "report/humanise.h"
#include "report/terminal.h"

namespace hone {

std::string plan_line(const FetchPlan& plan) {
  const auto files = static_cast<int64_t>(plan.files.size());
  const std::string missing = plan.missing.empty()
                                  ? "all here"
                                  : fmt::format("{} to download; {} are free", human_bytes(plan.missing_bytes),
                                                plan.free_bytes == UINT64_MAX ? "?" : human_bytes(plan.free_bytes));
  return fmt::format("{}: {} file{}, {} ({}), at commit {}", plan.name.text(), files, plural(files),
                     human_bytes(plan.bytes), missing, plan.commit.substr(0, 8));
}

FetchConsole::FetchConsole() : console_(Terminal::of(2)) {}

FetchOptions FetchConsole::shown(FetchOptions options) {
  options.plan = [this, inner = std::move(options.plan)](const FetchPlan& plan) {
    name_ = plan.name.repo.id;
    if (!plan.missing.empty()) console_.line("download " + plan_line(plan));
    if (inner) inner(plan);
    begin_ = last_line_ = rate_since_ = Clock::now();
  };
  options.transfer.progress = [this](const TransferProgress& at) { progress(at); };
  options.transfer.notice = [this](const std::string& text) { console_.line("download: " + one_line(text)); };
  return options;
}

std::string FetchConsole::rate_text(const TransferProgress& at, double& seconds_left) {
  const Clock::time_point now = Clock::now();
  if (const double seconds = std::chrono::duration<double>(now - rate_since_).count(); seconds >= 2 || rate_ == 0) {
    const double present = static_cast<double>(at.received - rate_from_) / std::max(seconds, 0.1);
    rate_ = rate_ == 0 ? present : 0.5 * (rate_ + present);
    rate_since_ = now;
    rate_from_ = at.received;
  }
  seconds_left = rate_ > 0 ? static_cast<double>(at.total - at.done) / rate_ : std::nan("");
  return fmt::format("{}/s", human_bytes(rate_));
}

void FetchConsole::progress(const TransferProgress& at) {
  constexpr double kMegabyte = 1e6;
  last_ = at;
  double left = 0;
  const std::string rate = rate_text(at, left);
  console_.set_progress({.label = fmt::format("download {}", name_),
                         .done = static_cast<int64_t>(static_cast<double>(at.done) / kMegabyte),
                         .total = static_cast<int64_t>(static_cast<double>(at.total) / kMegabyte),
                         .detail = "MB  " + rate,
                         .seconds_left = left});
  if (console_.interactive() || Clock::now() - last_line_ < std::chrono::seconds(30)) return;
  last_line_ = Clock::now();
  console_.line(fmt::format("download {}: {} of {}, {}, {} left", name_, human_bytes(at.done), human_bytes(at.total),
                            rate, human_duration(left)));
}

void FetchConsole::finish(const std::filesystem::path& snapshot) {
  console_.clear_progress();
  if (last_.received == 0) return;
  const double seconds = std::max(0.001, std::chrono::duration<double>(Clock::now() - begin_).count());
  console_.line(fmt::format("downloaded {} in {} ({}/s): {}", human_bytes(last_.received), human_duration(seconds),
                            human_bytes(static_cast<double>(last_.received) / seconds), snapshot.string()));
}

}  // namespace hone
