// A disk that is soon full.
#pragma once

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace hone {

/// A file system in memory, with options of tmpfs: size=16m.
class SmallDisk {
 public:
  SmallDisk(std::filesystem::path path, const char* options) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
    if (!mounted_) why_ = std::string("a small file system cannot be mounted here: ") + std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  /// For a test that is skipped; "" if it is there.
  const std::string& why_not() const { return why_; }
  /// Leaves `bytes` free, of what may be written.
  void fill(uintmax_t bytes) const {
    std::ofstream file(path_ / "ballast", std::ios::binary);
    struct statvfs disk {};
    ASSERT_EQ(statvfs(path_.c_str(), &disk), 0);
    const uintmax_t free = disk.f_bavail * disk.f_frsize;
    ASSERT_GT(free, bytes);
    file << std::string(free - bytes, 'x');
  }
  void empty() const { std::filesystem::remove(path_ / "ballast"); }

 private:
  std::filesystem::path path_;
  bool mounted_ = false;
  std::string why_;
};

}  // namespace hone
