// One writer per folder. The lock is a kernel lock (flock on FOLDER/.hone.lock): it ends with its process in any case,
// and does not depend on process numbers, which containers and hosts reuse. On a file system without locks (Lustre,
// FUSE and NFS as they are often mounted), the holder touches the file every 10 seconds instead, and a lock that has
// not been touched for 60 seconds, by the file system's own clock, is taken over.
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

/// Whether a folder is empty except for its lock.
bool holds_nothing(const std::filesystem::path& folder);

/// Times in seconds.
struct LockTimes {
  double heartbeat = 10;
  double stale = 60;
};

/// The lock of a folder on a file system without locks. Determining whether the holder is alive takes up to
/// `times.stale`.
class HeartbeatLock {
 public:
  /// As FolderLock().
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

  /// Takes the lock of an existing folder. Throws UserError if another process holds it (the message contains its host,
  /// pid, job and start), or if the folder is not writable. Calls `warn` if the file system has no locks.
  explicit FolderLock(const std::filesystem::path& folder, const Notice& warn = {});
  /// Releases the lock and removes its file.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// As the constructor, but waits if another process holds the lock: a killed process holds it until the system has
  /// closed all its files.
  static std::unique_ptr<FolderLock> take_within(const std::filesystem::path& folder,
                                                 std::chrono::milliseconds patience);
  /// As the constructor, but returns null if another process holds the lock or the folder is not writable.
  static std::unique_ptr<FolderLock> try_take(const std::filesystem::path& folder);

 private:
  bool take_from_kernel(const std::filesystem::path& folder);

  const std::filesystem::path path_;
  int descriptor_ = -1;
  std::unique_ptr<HeartbeatLock> heartbeat_;  // if the file system has no kernel locks
};

}  // namespace hone
