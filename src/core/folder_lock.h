// One writer a folder. The lock is the kernel's (flock on FOLDER/.hone.lock), so it ends with its process however that
// ends, and never depends on a process number, which containers and hosts repeat. Where the file system has no locks
// (Lustre, FUSE and NFS as they are often mounted), the holder touches the file every 10 seconds instead, and a lock
// that has not been touched for 60 seconds, by the file system's own clock, is taken over.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace hone {

inline constexpr const char* kLockName = ".hone.lock";

/// Whether a folder is empty but for its lock.
bool holds_nothing(const std::filesystem::path& folder);

/// Seconds.
struct LockTimes {
  double heartbeat = 10;
  double stale = 60;
};

/// The lock of a folder on a file system without locks. Finding out whether the holder of one is alive takes up to
/// `times.stale`.
class HeartbeatLock {
 public:
  /// As FolderLock.
  explicit HeartbeatLock(const std::filesystem::path& folder, const LockTimes& times = {});
  ~HeartbeatLock();
  HeartbeatLock(const HeartbeatLock&) = delete;
  HeartbeatLock& operator=(const HeartbeatLock&) = delete;

 private:
  bool make_file() const;
  void beat(double seconds);

  const std::filesystem::path folder_, path_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

class FolderLock {
 public:
  using Notice = std::function<void(const std::string&)>;

  /// Takes the lock of an existing folder. UserError if another process holds it (its host, pid, job and start are in
  /// the message), or if the folder cannot be written. `warn` is told that the file system has no locks.
  explicit FolderLock(const std::filesystem::path& folder, const Notice& warn = {});
  /// Gives it up and removes its file.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// As the constructor, but waits for another process that holds it: one that was killed does until the system has
  /// closed all that it had open.
  static std::unique_ptr<FolderLock> take_within(const std::filesystem::path& folder,
                                                 std::chrono::milliseconds patience);
  /// As the constructor, but nothing where another process holds the lock or the folder cannot be written.
  static std::unique_ptr<FolderLock> try_take(const std::filesystem::path& folder);

 private:
  bool take_from_kernel(const std::filesystem::path& folder);

  const std::filesystem::path path_;
  int descriptor_ = -1;
  std::unique_ptr<HeartbeatLock> heartbeat_;  // where the kernel has none
};

}  // namespace hone
