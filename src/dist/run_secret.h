// What the ranks of a run know and nobody else does: where it is found, and the file that rank 0 makes for the others
// where no launcher has given it to all.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/launch_environment.h"

namespace hone {

inline constexpr const char* kSecretVariable = "HONE_RUN_SECRET";
inline constexpr const char* kSecretFileVariable = "HONE_RUN_SECRET_FILE";

/// 32 random bytes as hexadecimal digits.
std::string new_secret();

/// What the file that HONE_RUN_SECRET_FILE names holds (whatever its mode: a container's secrets are often readable for
/// all of the container), or HONE_RUN_SECRET; "" if neither is set. Throws UserError: shorter than 16 characters,
/// longer than 4096, a file that cannot be read.
std::string stated_secret(const std::function<const char*(const char*)>& variable);

/// Where a rank finds the secret.
struct SecretPlaces {
  std::string stated = {};  ///< "": rank 0 makes a file
  /// In the first of these; the others look in all.
  std::vector<std::filesystem::path> folders = {};
  bool of_this_host = false;  ///< the folders are this user's alone, or are not used
};

/// `output_dir` is asked for only where ranks may be on several hosts and nothing is stated; it gives "" where the verb
/// has none. Throws as stated_secret does, and UserError where there is no place at all that all ranks see.
SecretPlaces secret_places(const LaunchEnvironment& environment, const std::function<std::string()>& output_dir);
SecretPlaces secret_places(const LaunchEnvironment& environment, const std::function<std::string()>& output_dir,
                           const std::function<const char*(const char*)>& variable);

/// "hone-JOB-29500.secret": of the run and the port at which its rank 0 listens.
std::string secret_file_name(const std::string& run, int port);

/// The file of a new secret, which only this user may read; gone with it, as are folders that it had to make for an
/// output_dir. One of that name that a killed run has left is replaced. Throws UserError where none can be
/// made that is private.
class SecretFile {
 public:
  SecretFile(const SecretPlaces& places, const std::string& name);
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const std::string& secret() const { return secret_; }

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // folders, the outermost first
  std::string secret_ = new_secret();
};

/// What such a file holds; nothing if it is not there (yet). Throws UserError if others may read it or have made it.
std::optional<std::string> read_secret_file(const SecretPlaces& places, const std::string& name);

}  // namespace hone
