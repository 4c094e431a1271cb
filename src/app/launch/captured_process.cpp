#include "app/launch/captured_process.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <system_error>
#include <thread>

#include "core/files/descriptor.h"

namespace hone {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::milliseconds(20);
constexpr auto kTimeToEnd = std::chrono::seconds(10);
constexpr off_t kMostOutput = off_t{16} << 20;

Descriptor memory_file() {
  Descriptor file(::memfd_create("hone output", MFD_CLOEXEC));
  if (!file.open()) throw std::system_error(errno, std::generic_category(), "a program's output");
  return file;
}

std::string end_of(const Descriptor& file) {
  struct stat facts {};
  ::fstat(file.descriptor(), &facts);
  off_t at = std::max<off_t>(0, facts.st_size - kMostOutput);
  std::string text(static_cast<size_t>(facts.st_size - at), '\0');
  const ssize_t count = ::pread(file.descriptor(), text.data(), text.size(), at);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

bool ends_programs(int signal) { return signal == SIGTERM || signal == SIGINT || signal == SIGHUP; }

/// Whether the process has ended; then its status and memory are in `result`.
bool has_ended(pid_t pid, CapturedProcess& result) {
  struct rusage usage {};
  if (::wait4(pid, &result.status, WNOHANG, &usage) != pid) return false;
  result.peak_resident_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  return true;
}

}  // namespace

CapturedProcess run_captured(const std::vector<std::string>& command, double limit_s, CaughtSignals& signals) {
  const Descriptor out = memory_file(), err = memory_file();
  const Clock::time_point begin = Clock::now();
  const pid_t pid = start_process(command, {}, {out.descriptor(), err.descriptor()});
  CapturedProcess result;
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::optional<Clock::time_point> told;
  while (!has_ended(pid, result)) {
    if (const int signal = signals.take(); ends_programs(signal)) result.stopped_by = signal;
    if (result.stopped_by == 0 && elapsed() > limit_s) result.timed_out = true;
    if ((result.stopped_by != 0 || result.timed_out) && !told) {
      ::kill(pid, SIGTERM);
      told = Clock::now();
    }
    if (told && Clock::now() - *told > kTimeToEnd) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(kPause);
  }
  result.seconds = elapsed();
  result.out = end_of(out);
  result.err = end_of(err);
  return result;
}

}  // namespace hone
