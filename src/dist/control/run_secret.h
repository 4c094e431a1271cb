// The secret that the ranks of a run share: where it is found, the file that rank 0 writes if no launcher provides a
// secret, and the protocol with which two processes prove that they know it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/control/launch_environment.h"
#include "dist/control/socket.h"

namespace hone {

inline constexpr const char* kSecretVariable = "HONE_RUN_SECRET";
inline constexpr const char* kSecretFileVariable = "HONE_RUN_SECRET_FILE";

/// 32 random bytes as hexadecimal digits.
std::string new_secret();

/// The contents of the file HONE_RUN_SECRET_FILE (with any mode: secrets of containers are often readable for all of
/// the container), or the value of HONE_RUN_SECRET; "" if neither is set. Throws UserError if it has fewer than 16 or
/// more than 4096 characters, or if the file cannot be read.
std::string stated_secret(const std::function<const char*(const char*)>& variable);

/// The places where a rank finds the secret.
struct SecretPlaces {
  std::string stated = {};  ///< the secret; "": rank 0 writes a file
  /// Rank 0 writes the file to the first folder; the other ranks search all of them.
  std::vector<std::filesystem::path> folders = {};
  bool of_this_host = false;  ///< a folder is used only if no other user can access it
};

/// `output_dir` is called only if ranks may be on several hosts and no secret is stated; it returns "" for verbs
/// without an output folder. Throws as stated_secret does, and UserError if there is no place that all ranks share.
SecretPlaces secret_places(const LaunchEnvironment& environment, const std::function<std::string()>& output_dir);
SecretPlaces secret_places(const LaunchEnvironment& environment, const std::function<std::string()>& output_dir,
                           const std::function<const char*(const char*)>& variable);

/// Whether two secrets are equal, in a time that does not tell where they differ.
bool same_secret(std::string_view a, std::string_view b);

/// "hone-JOB-29500.secret", from the run and the port at which rank 0 listens.
std::string secret_file_name(const std::string& run, int port);

/// A file with a new secret that only this user may read. The destructor removes the file and the folders that were
/// made for it in an output_dir. A file of the same name from a killed run is replaced. Throws UserError if a private
/// file cannot be written.
class SecretFile {
 public:
  SecretFile(const SecretPlaces& places, const std::string& name);
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const std::string& secret() const { return secret_; }

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // folders that were made, the outermost first
  std::string secret_ = new_secret();
};

/// The secret in a SecretFile; nullopt if there is no such file (yet). Throws UserError if other users may read it or
/// have written it.
std::optional<std::string> read_secret_file(const SecretPlaces& places, const std::string& name);

// The protocol: each side sends random bytes, then a MAC (HMAC-SHA256) of both sides' bytes and the caller's claims.
// The listener sends its MAC only to a caller whose MAC is correct, so a stranger learns nothing. It does not protect
// against an attacker who can modify the traffic.

/// What a caller claims to be. The MAC covers all fields.
struct Claims {
  std::string version;  ///< the program's
  std::string purpose;  ///< "control" or "data": a proof for one is invalid for the other
  std::string run;      ///< run_digest
  int port = 0;         ///< the listener's port
  int rank = 0, world_size = 0;
};

/// Claims as a message, and its inverse; nullopt if `text` is invalid.
std::string claims_text(const Claims& claims);
std::optional<Claims> claims_of(const std::string& text);

/// A hash of 64 hexadecimal digits that identifies a run, from the launcher's name of the run and its port.
std::string run_digest(const std::string& run, int port);

/// `count` random bytes from the system. Throws Error(kDeviceFailed) if the system does not provide them.
std::string random_bytes(size_t count);
std::string hexadecimal(const std::string& bytes);

/// Limits before authentication: bytes of a message, and seconds.
constexpr uint32_t kLongestProof = 1024;
constexpr double kProofSeconds = 5;

/// The listening side of one connection.
class ListenersProof {
 public:
  /// The caller's claims must equal `expected`, except for version, rank and world size.
  ListenersProof(std::string secret, Claims expected) : secret_(std::move(secret)), expected_(std::move(expected)) {}

  enum class State { kOpen, kProven, kFailed };
  /// Handles and answers the caller's next message.
  State take(const Socket& socket, const Message& message);
  /// The caller's claims, after kProven. A rank of another run with the same secret is proven, too: check `run`.
  const Claims& claims() const { return claims_; }
  /// Whether the caller followed the protocol with another secret.
  bool other_secret() const { return other_secret_; }

 private:
  std::string secret_;
  Claims expected_, claims_;
  std::string callers_bytes_, own_bytes_;
  bool other_secret_ = false;
};

enum class ProofAnswer {
  kProven,
  kNoAnswer,     ///< no listener with this protocol, or another run
  kOtherSecret,  ///< a listener that claims to be this run but has another secret
  kNoSecret,     ///< a listener that claims to be this run, but the caller has no secret
};

/// The calling side; blocks for at most kProofSeconds. Calls `secret` when a listener answers. After kProven the caller
/// may use the connection, and `reader` may have read further messages.
ProofAnswer prove(const Socket& socket, MessageReader& reader, const Claims& claims,
                  const std::function<std::optional<std::string>()>& secret);

}  // namespace hone
