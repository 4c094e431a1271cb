// The keys of the five source systems, and what each of them is here.
#pragma once

#include <string>
#include <vector>

namespace hone {

/// A key as its system writes it.
struct SourceKey {
  std::string system;
  std::string written;  ///< "training.optim", "--use_fp8", "ACCELERATE_KT_NUM_THREADS"
  std::string value;    ///< one that it may have; "" = any
};

const std::vector<SourceKey>& source_keys();

/// What `hone validate` says of a key.
struct SourceKeyStatus {
  enum class Kind { kUsed, kNoEffect, kNotHere, kUnknown };
  Kind kind = Kind::kUnknown;
  std::string canonical;  ///< our name; "" if it is unknown
  std::string remark;     ///< why it has no effect, or what is not in this version
};

SourceKeyStatus status_of(const SourceKey& key);

/// Names of environment variables among the source keys that are set: they are read as keys of a configuration alone.
std::vector<std::string> unread_environment();

/// docs/source-keys.md, whole.
std::string source_keys_markdown();

}  // namespace hone
