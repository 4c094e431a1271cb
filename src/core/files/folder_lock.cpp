#include "core/files/folder_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/quiet_thread.h"
#include "core/files/durable_file.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// Whether an error means that the file system has no locks, rather than that the lock is held.
bool has_no_locks(int error) { return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL; }

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

constexpr double kAbsent = -1;

/// The time of the last change of a file, by its file system's clock; kAbsent if it does not exist.
double changed_at(const fs::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 ? seconds_of(status.st_mtim) : kAbsent;
}

/// The file system's clock: the time of a new file. kAbsent if none can be created.
double clock_of(const fs::path& folder) {
  const fs::path probe = temporary_beside(folder / kLockName);
  const int descriptor = create_new_file(probe);
  if (descriptor < 0) return kAbsent;
  struct stat status {};
  const bool known = fstat(descriptor, &status) == 0;
  close(descriptor);
  unlink(probe.c_str());
  return known ? seconds_of(status.st_mtim) : kAbsent;
}

std::string job_text() {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"}) {
    if (const char* value = std::getenv(name)) return fmt::format("job {}, ", value);
  }
  return "";
}

/// "host7, pid 4711, job 42, since 2026-03-01 12:00:00"
std::string holder_text() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  return fmt::format("{}, pid {}, {}since {:%Y-%m-%d %H:%M:%S}", host.data(), getpid(), job_text(),
                     fmt::localtime(now));
}

std::string read_holder(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  std::string text(512, '\0');
  const ssize_t got = descriptor < 0 ? 0 : read(descriptor, text.data(), text.size());
  if (descriptor >= 0) close(descriptor);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  text = text.substr(0, text.find('\n'));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text.empty() ? "another process" : text;
}

[[noreturn]] void held(const fs::path& path) {
  throw UserError("another run writes to this folder: " + read_holder(path), path.parent_path().string(),
                  "wait for it, stop it, or choose another folder");
}

/// Writes the holder into the lock file. Ignores errors: a full disk must not prevent the lock.
void write_holder(int descriptor) {
  const std::string text = holder_text() + "\n";
  const bool written = ftruncate(descriptor, 0) == 0 &&
                       pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  static_cast<void>(written);
}

[[noreturn]] void not_writable(const fs::path& folder, int error) {
  throw UserError(std::string("the folder cannot be written: ") + std::strerror(error), folder.string(),
                  "check its permissions and the free space");
}

}  // namespace

bool holds_nothing(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename() != kLockName) return false;
  }
  return true;
}

/// Creates the lock file with its holder in one step; returns false if it exists.
bool HeartbeatLock::make_file() const {
  const fs::path made = temporary_beside(path_);
  const int descriptor = create_new_file(made);
  if (descriptor < 0) not_writable(folder_, errno);
  write_holder(descriptor);
  close(descriptor);
  bool taken = link(made.c_str(), path_.c_str()) == 0;
  int error = taken ? 0 : errno;
  if (!taken && error != EEXIST) {  // a file system without hard links
    const int exclusive = create_new_file(path_);
    taken = exclusive >= 0;
    error = taken ? 0 : errno;
    if (taken) {
      write_holder(exclusive);
      close(exclusive);
    }
  }
  unlink(made.c_str());
  if (!taken && error != EEXIST) not_writable(folder_, error);
  return taken;
}

/// A lock file that is touched during the wait is held. A stale one is renamed, which succeeds in only one of several
/// processes, and created again.
HeartbeatLock::HeartbeatLock(const fs::path& folder, const LockTimes& times)
    : folder_(folder), path_(folder / kLockName) {
  double first = changed_at(path_);
  while (!make_file()) {
    const double last = changed_at(path_), now = clock_of(folder_);
    if (now == kAbsent) not_writable(folder_, errno);
    if (last == kAbsent) continue;
    if (first != kAbsent && last != first) held(path_);
    first = last;
    struct stat status {};
    // from a failed attempt at a kernel lock
    const bool empty = lstat(path_.c_str(), &status) == 0 && status.st_size == 0;
    if (now - last <= times.stale && !empty) {
      std::this_thread::sleep_for(std::chrono::duration<double>(times.heartbeat / 10));
      continue;
    }
    const fs::path away = temporary_beside(path_, "stale");
    if (rename(path_.c_str(), away.c_str()) != 0) continue;
    const bool fresh = changed_at(away) != last;  // a process took it over a moment before
    const bool back = fresh && link(away.c_str(), path_.c_str()) == 0;
    unlink(away.c_str());
    if (back) held(path_);
    first = kAbsent;
  }
  thread_ = quiet_thread([this, seconds = times.heartbeat] { beat(seconds); });
}

HeartbeatLock::~HeartbeatLock() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  unlink(path_.c_str());
}

void HeartbeatLock::beat(double seconds) {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return stopping_; })) {
    utimensat(AT_FDCWD, path_.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);  // null: the file system's present time
  }
}

FolderLock::FolderLock(const fs::path& folder, const Notice& warn) : path_(folder / kLockName) {
  if (take_from_kernel(folder)) return;
  if (warn) {
    warn(
        fmt::format("the file system of {} has no locks: each run touches a file every {:.0f} s instead, which shows "
                    "whether another run writes there",
                    folder.string(), LockTimes().heartbeat));
  }
  heartbeat_ = std::make_unique<HeartbeatLock>(folder);
}

FolderLock::~FolderLock() {
  if (descriptor_ < 0) return;
  unlink(path_.c_str());
  close(descriptor_);
}

std::unique_ptr<FolderLock> FolderLock::take_within(const fs::path& folder, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPause{20};
  const auto end = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < end) {
    if (auto lock = try_take(folder)) return lock;
    std::this_thread::sleep_for(kPause);
  }
  return std::make_unique<FolderLock>(folder);
}

std::unique_ptr<FolderLock> FolderLock::try_take(const fs::path& folder) {
  try {
    return std::make_unique<FolderLock>(folder);
  } catch (const UserError&) {
    return nullptr;
  }
}

/// Returns false if the file system has no locks. Retries if the previous holder has just removed the file.
bool FolderLock::take_from_kernel(const fs::path& folder) {
  for (;;) {
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (descriptor_ < 0) not_writable(folder, errno);
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(std::exchange(descriptor_, -1));
      if (has_no_locks(error)) return false;
      if (error == EWOULDBLOCK) held(path_);
      not_writable(folder, error);
    }
    struct stat mine {
    }, there{};
    if (fstat(descriptor_, &mine) == 0 && lstat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
        mine.st_dev == there.st_dev) {
      write_holder(descriptor_);
      return true;
    }
    close(std::exchange(descriptor_, -1));
  }
}

}  // namespace hone
